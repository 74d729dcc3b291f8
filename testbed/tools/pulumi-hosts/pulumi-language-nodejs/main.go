// pulumi-language-nodejs is a stand-in for Pulumi's language host of programs in TypeScript.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pulumi/pulumi/pkg/v3/codegen/nodejs"
	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"joiner.dev/testbed/tools/pulumi-hosts/host"
)

func main() {
	host.Main(host.Language{
		Generate: generate,
		Link:     link,
		Install:  []string{"npm", "install", "--no-audit", "--no-fund", "--loglevel=error"},
		Plugins:  plugins,
		Command:  command,
	})
}

// manifest is the part of a package.json that decides which plugin a package needs.
type manifest struct {
	Name    string
	Version string
	Pulumi  plugin.PulumiPluginJSON
}

func read(folder string) (*manifest, error) {
	content, err := os.ReadFile(filepath.Join(folder, "package.json"))
	if err != nil {
		return nil, err
	}
	read := &manifest{}
	return read, json.Unmarshal(content, read)
}

func generate(
	described *schema.Package, request *pulumirpc.GeneratePackageRequest, loader schema.ReferenceLoader,
) (map[string][]byte, error) {
	return nodejs.GeneratePackage(
		host.Generator, described, request.ExtraFiles, request.LocalDependencies, request.Local, loader,
	)
}

func link(program, sdk string) (string, error) {
	described, err := read(filepath.Join(program, sdk))
	if err != nil {
		return "", err
	}
	dependency := fmt.Sprintf("dependencies.%s=file:%s", described.Name, sdk)
	_, err = host.Output(program, "npm", "pkg", "set", dependency)
	return fmt.Sprintf("import * as %s from %q;", described.Pulumi.Name, described.Name), err
}

// plugins searches the direct dependencies, as npm places them; Pulumi's host also searches deeper.
func plugins(program string) ([]*plugin.PulumiPluginJSON, error) {
	var found []*plugin.PulumiPluginJSON
	for _, pattern := range []string{"*", "@*/*"} {
		folders, err := filepath.Glob(filepath.Join(program, "node_modules", pattern))
		if err != nil {
			return nil, err
		}
		for _, folder := range folders {
			described, err := read(folder)
			if err != nil || !described.Pulumi.Resource {
				continue // not a package, or one without a plugin
			}
			needed := described.Pulumi
			if needed.Name == "" {
				needed.Name = strings.TrimPrefix(described.Name, "@pulumi/")
			}
			if needed.Version == "" {
				needed.Version = described.Version
			}
			found = append(found, &needed)
		}
	}
	return found, nil
}

// command returns the command of Pulumi's SDK that compiles and runs a program.
func command(
	ctx context.Context, program, _ string, run *pulumirpc.RunRequest, facts []host.Fact,
) (*exec.Cmd, error) {
	runner, err := host.Output(program, "node", "-p", "require.resolve('@pulumi/pulumi/cmd/run')")
	if err != nil {
		return nil, fmt.Errorf("the npm package @pulumi/pulumi is not installed: %w", err)
	}
	arguments := []string{strings.TrimSpace(runner), "--pwd=" + run.Pwd}
	for _, fact := range facts {
		name := strings.ReplaceAll(strings.ToLower(fact.Name), "_", "-")
		arguments = append(arguments, "--"+name+"="+fact.Value)
	}
	arguments = append(arguments, run.Info.EntryPoint)
	started := exec.CommandContext(ctx, "node", append(arguments, run.Args...)...)
	started.Env = append(os.Environ(), "PULUMI_NODEJS_TYPESCRIPT=true")
	return started, nil
}
