// pulumi-language-go is a stand-in for Pulumi's language host of programs in Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	gogen "github.com/pulumi/pulumi/pkg/v3/codegen/go"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"golang.org/x/mod/modfile"
	"joiner.dev/testbed/tools/pulumi-hosts/host"
)

func main() {
	host.Main(host.Language{
		Generate: generate,
		Link:     link,
		Install:  []string{"go", "mod", "tidy"},
		Plugins:  plugins,
		Command:  command,
	})
}

func generate(
	described *schema.Package, request *pulumirpc.GeneratePackageRequest, _ schema.ReferenceLoader,
) (map[string][]byte, error) {
	return gogen.GeneratePackage(host.Generator, described, request.LocalDependencies)
}

func link(program, sdk string) (string, error) {
	content, err := os.ReadFile(filepath.Join(program, sdk, "go.mod"))
	if err != nil {
		return "", err
	}
	module := modfile.ModulePath(content)
	_, err = host.Output(program, "go", "mod", "edit", fmt.Sprintf("-replace=%s=./%s", module, sdk))
	return fmt.Sprintf("import %q", module+"/…"), err
}

func plugins(program string) ([]*plugin.PulumiPluginJSON, error) {
	folders, err := host.Output(program, "go", "list", "-m", "-f", "{{.Dir}}", "all")
	if err != nil {
		return nil, err
	}
	var found []*plugin.PulumiPluginJSON
	for folder := range strings.Lines(folders) {
		if folder = strings.TrimSpace(folder); folder == "" {
			continue // a module that is not downloaded, because no package of it is used
		}
		for _, pattern := range []string{"", "*", "go/*"} {
			paths, err := filepath.Glob(filepath.Join(folder, pattern, "pulumi-plugin.json"))
			if err != nil {
				return nil, err
			}
			for _, path := range paths {
				needed, err := plugin.LoadPulumiPluginJSON(path)
				if err != nil {
					return nil, err
				}
				if needed.Resource {
					found = append(found, needed)
				}
			}
		}
	}
	return found, nil
}

// command builds a program, and returns the command that runs it.
func command(
	ctx context.Context, program, scratch string, run *pulumirpc.RunRequest, facts []host.Fact,
) (*exec.Cmd, error) {
	binary := filepath.Join(scratch, "program")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, run.Info.EntryPoint)
	build.Dir = program
	if output, err := build.CombinedOutput(); err != nil {
		return nil, errors.New("the program does not compile:\n" + string(output))
	}
	started := exec.CommandContext(ctx, binary, run.Args...)
	started.Env = os.Environ()
	for _, fact := range facts {
		started.Env = append(started.Env, "PULUMI_"+fact.Name+"="+fact.Value)
	}
	return started, nil
}
