// Command etcd is the etcd server, built from its module: etcd keeps its own
// main package out of the server module.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
