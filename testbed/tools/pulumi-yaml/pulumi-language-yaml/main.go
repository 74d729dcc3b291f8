// pulumi-language-yaml is Pulumi's language host of YAML programs, with a call that its version lacks.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/pulumi/pulumi-yaml/pkg/server"
	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
)

// patience is how long the engine may be silent before the host ends.
const patience = 5 * time.Minute

// host answers every call as Pulumi's host does, and also Link.
type host struct {
	pulumirpc.LanguageRuntimeServer
}

// Link does nothing: YAML programs import no SDK. `pulumi package add` of the engine calls it.
func (host) Link(context.Context, *pulumirpc.LinkRequest) (*pulumirpc.LinkResponse, error) {
	return &pulumirpc.LinkResponse{}, nil
}

func main() {
	tracing := flag.String("tracing", "", "endpoint of traces")
	flag.String("root", "", "accepted and not used")
	flag.Parse()
	if err := serve(flag.Arg(0), *tracing); err != nil {
		log.Fatal(err)
	}
}

// serve answers calls until the engine ends or interrupts the host.
func serve(engine, tracing string) error {
	running, end := signal.NotifyContext(context.Background(), os.Interrupt)
	defer end()
	ended := make(chan bool)
	go func() {
		<-running.Done()
		close(ended)
	}()
	if engine != "" {
		if err := rpcutil.Healthcheck(running, engine, patience, end); err != nil {
			return err
		}
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: ended,
		Init: func(calls *grpc.Server) error {
			own := host{server.NewLanguageHost(engine, tracing, false)}
			pulumirpc.RegisterLanguageRuntimeServer(calls, own)
			return nil
		},
	})
	if err != nil {
		return err
	}
	fmt.Println(handle.Port) // the engine connects to it
	return <-handle.Done
}
