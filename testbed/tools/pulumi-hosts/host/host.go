// Package host answers the engine's calls in place of a language host of Pulumi.
//
// The proxy of Go modules has no language host of the engine's version for Node.js, Go or Python. Pulumi's own
// generators write the SDKs, and Pulumi's own SDKs run the programs. Programs cannot be converted, and
// options of the runtime in Pulumi.yaml have no effect.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"github.com/pulumi/pulumi/pkg/v3/codegen/schema"
	"github.com/pulumi/pulumi/sdk/v3/go/common/constant"
	"github.com/pulumi/pulumi/sdk/v3/go/common/resource/plugin"
	"github.com/pulumi/pulumi/sdk/v3/go/common/util/rpcutil"
	pulumirpc "github.com/pulumi/pulumi/sdk/v3/proto/go"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Generator is what Pulumi's generators name as their caller in the files that they write.
const Generator = "the Pulumi SDK Generator"

// patience is how long the engine may be silent before the host ends.
const patience = 5 * time.Minute

// Generate returns the files of a package's SDK.
type Generate func(
	*schema.Package, *pulumirpc.GeneratePackageRequest, schema.ReferenceLoader,
) (map[string][]byte, error)

// Language is what differs between languages.
type Language struct {
	Generate Generate
	// Link makes the program in a folder depend on the SDK in a folder relative to it. It returns the
	// line with which the program imports the SDK.
	Link func(program, sdk string) (string, error)
	// Install is the command that installs what a program depends on.
	Install []string
	// Plugins returns the plugins of the packages that the program in a folder depends on.
	Plugins func(program string) ([]*plugin.PulumiPluginJSON, error)
	// Command returns the command that runs the program in a folder, in `scratch` if it needs files.
	Command func(ctx context.Context, program, scratch string, run *pulumirpc.RunRequest, facts []Fact) (*exec.Cmd, error)
}

// Fact is one of the facts about an operation that Pulumi's SDKs read, by the name that follows PULUMI_.
type Fact struct{ Name, Value string }

// Main serves a language until the engine ends.
func Main(language Language) {
	flag.String("tracing", "", "accepted and not used")
	flag.String("root", "", "accepted and not used")
	flag.Parse()
	if err := serve(&server{Language: language, engine: flag.Arg(0)}); err != nil {
		log.Fatal(err)
	}
}

func serve(own *server) error {
	running, end := signal.NotifyContext(context.Background(), os.Interrupt)
	defer end()
	ended := make(chan bool)
	go func() {
		<-running.Done()
		close(ended)
	}()
	if err := rpcutil.Healthcheck(running, own.engine, patience, end); err != nil {
		return err
	}
	handle, err := rpcutil.ServeWithOptions(rpcutil.ServeOptions{
		Cancel: ended,
		Init: func(calls *grpc.Server) error {
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

type server struct {
	pulumirpc.UnimplementedLanguageRuntimeServer
	Language
	engine string
}

func (s *server) GetPluginInfo(context.Context, *emptypb.Empty) (*pulumirpc.PluginInfo, error) {
	return &pulumirpc.PluginInfo{}, nil // it has no version of its own
}

func (s *server) GetRequiredPackages(
	_ context.Context, request *pulumirpc.GetRequiredPackagesRequest,
) (*pulumirpc.GetRequiredPackagesResponse, error) {
	plugins, err := s.Plugins(request.Info.ProgramDirectory)
	if err != nil {
		return nil, err
	}
	response := &pulumirpc.GetRequiredPackagesResponse{}
	for _, one := range plugins {
		response.Packages = append(response.Packages, &pulumirpc.PackageDependency{
			Name: one.Name, Kind: "resource", Version: one.Version, Server: one.Server,
		})
	}
	return response, nil
}

func (s *server) GeneratePackage(
	_ context.Context, request *pulumirpc.GeneratePackageRequest,
) (*pulumirpc.GeneratePackageResponse, error) {
	return s.Generate.Write(request)
}

// Write writes the files of a package's SDK into the folder that a request names.
func (generate Generate) Write(
	request *pulumirpc.GeneratePackageRequest,
) (*pulumirpc.GeneratePackageResponse, error) {
	loader, err := schema.NewLoaderClient(request.LoaderTarget)
	if err != nil {
		return nil, err
	}
	defer loader.Close()
	var described schema.PackageSpec
	if err := json.Unmarshal([]byte(request.Schema), &described); err != nil {
		return nil, err
	}
	options := schema.ValidationOptions{AllowDanglingReferences: true}
	bound, found, err := schema.BindSpec(described, schema.NewCachedLoader(loader), options)
	if err != nil {
		return nil, err
	}
	response := &pulumirpc.GeneratePackageResponse{Diagnostics: plugin.HclDiagnosticsToRPCDiagnostics(found)}
	if found.HasErrors() {
		return response, nil
	}
	files, err := generate(bound, request, loader)
	if err != nil {
		return nil, err
	}
	for name, content := range files {
		path := filepath.Join(request.Directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return nil, err
		}
	}
	return response, nil
}

func (s *server) Link(_ context.Context, request *pulumirpc.LinkRequest) (*pulumirpc.LinkResponse, error) {
	response := &pulumirpc.LinkResponse{ImportInstructions: "The program imports the SDK by:\n"}
	for _, one := range request.Packages {
		imported, err := s.Language.Link(request.Info.ProgramDirectory, one.Path)
		if err != nil {
			return nil, err
		}
		response.ImportInstructions += "\n  " + imported + "\n"
	}
	return response, nil
}

func (s *server) InstallDependencies(
	request *pulumirpc.InstallDependenciesRequest, stream pulumirpc.LanguageRuntime_InstallDependenciesServer,
) error {
	closer, stdout, stderr, err := rpcutil.MakeInstallDependenciesStreams(stream, request.IsTerminal)
	if err != nil {
		return err
	}
	defer closer.Close()
	command := exec.CommandContext(stream.Context(), s.Install[0], s.Install[1:]...)
	command.Dir = request.Info.ProgramDirectory
	command.Stdout, command.Stderr = stdout, stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return closer.Close()
}

func (s *server) Run(ctx context.Context, request *pulumirpc.RunRequest) (*pulumirpc.RunResponse, error) {
	scratch, err := os.MkdirTemp("", "pulumi-program-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(scratch)
	command, err := s.Command(ctx, request.Info.ProgramDirectory, scratch, request, s.facts(request))
	if err != nil {
		return &pulumirpc.RunResponse{Error: err.Error()}, nil
	}
	config, err := json.Marshal(request.Config)
	if err != nil {
		return nil, err
	}
	secrets, err := json.Marshal(request.ConfigSecretKeys)
	if err != nil {
		return nil, err
	}
	command.Dir = request.Pwd
	command.Env = append(
		command.Environ(), "PULUMI_CONFIG="+string(config), "PULUMI_CONFIG_SECRET_KEYS="+string(secrets),
	)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	err = command.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return &pulumirpc.RunResponse{}, nil
	case errors.As(err, &exit) && exit.ExitCode() == constant.ExitStatusLoggedError:
		return &pulumirpc.RunResponse{Bail: true}, nil // the SDK has logged the error
	default:
		return &pulumirpc.RunResponse{Error: fmt.Sprintf("the program failed: %v", err)}, nil
	}
}

func (s *server) facts(request *pulumirpc.RunRequest) []Fact {
	return []Fact{
		{"ORGANIZATION", request.Organization},
		{"PROJECT", request.Project},
		{"ROOT_DIRECTORY", request.Info.RootDirectory},
		{"STACK", request.Stack},
		{"PARALLEL", strconv.Itoa(int(request.Parallel))},
		{"DRY_RUN", strconv.FormatBool(request.DryRun)},
		{"MONITOR", request.MonitorAddress},
		{"ENGINE", s.engine},
	}
}

// Output returns what a command prints in a folder, and its error messages as an error.
func Output(folder, name string, arguments ...string) (string, error) {
	command := exec.Command(name, arguments...)
	command.Dir = folder
	output, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s: %w\n%s", command, err, exit.Stderr)
	}
	return string(output), err
}
