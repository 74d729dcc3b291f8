// Serves container images on a free port of this machine, as a registry does.
//
// It keeps them in the folder that is its argument, and prints its port.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	config := &configuration.Configuration{
		Storage: configuration.Storage{"filesystem": {"rootdirectory": os.Args[1]}},
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(http.Serve(listener, handlers.NewApp(context.Background(), config)))
}
