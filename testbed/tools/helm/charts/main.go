// Command charts renders a Helm chart as `helm template` does.
//
// Arguments: the chart's folder, and the release's namespace. It reads values as JSON from standard
// input, and writes the rendered files as a JSON object, by their paths.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	files, err := rendered(os.Args[1], os.Args[2])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(files)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func rendered(folder, namespace string) (map[string]string, error) {
	chart, err := loader.Load(folder)
	if err != nil {
		return nil, err
	}
	values := map[string]interface{}{}
	if err := json.NewDecoder(os.Stdin).Decode(&values); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "joiner", Namespace: namespace}
	given, err := chartutil.ToRenderValues(chart, values, release, nil)
	if err != nil {
		return nil, err
	}
	return engine.Render(chart, given)
}
