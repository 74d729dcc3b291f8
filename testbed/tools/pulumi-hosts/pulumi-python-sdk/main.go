// pulumi-python-sdk generates SDKs for programs in Python. It is a part of the stand-in for Pulumi's
// language host of Python, which is otherwise in Python (testbed/plugins/languagehost.py).
//
// It reads a GeneratePackageRequest from standard input, and writes the response to standard output.
package main

import (
	"io"
	"log"
	"os"

	"github.com/pulumi/pulumi/pkg/v3/codegen/python"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/protobuf/proto"
	"joiner.dev/testbed/tools/pulumi-hosts/host"
)

func main() {
	log.SetFlags(0)
	if err := answer(os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func answer(asked io.Reader, answered io.Writer) error {
	content, err := io.ReadAll(asked)
	if err != nil {
		return err
	}
	request := &pulumirpc.GeneratePackageRequest{}
	if err := proto.Unmarshal(content, request); err != nil {
		return err
	}
	response, err := host.Generate(generate).Write(request)
	if err != nil {
		return err
	}
	if content, err = proto.Marshal(response); err != nil {
		return err
	}
	_, err = answered.Write(content)
	return err
}

func generate(
	described *schema.Package, request *pulumirpc.GeneratePackageRequest, loader schema.ReferenceLoader,
) (map[string][]byte, error) {
	return python.GeneratePackage(host.Generator, described, request.ExtraFiles, loader)
}
