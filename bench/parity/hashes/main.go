// Command hashes prints Karpenter's own hashes of NodePools and EC2NodeClasses.
//
// It reads JSON objects from standard input, and prints one hash per line, in their order: of a
// NodePool in hash version v3, of an EC2NodeClass in v6.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	awsv1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	apijson "k8s.io/apimachinery/pkg/util/json"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const usage = "usage: hashes CA-BUNDLE < OBJECTS > HASHES"

func main() {
	if len(os.Args) != 2 {
		fail(errors.New(usage))
	}
	objects := json.NewDecoder(os.Stdin)
	for {
		var object json.RawMessage
		err := objects.Decode(&object)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			fail(err)
		}
		hash, err := hashed(object, os.Args[1])
		if err != nil {
			fail(err)
		}
		fmt.Println(hash)
	}
}

func hashed(object json.RawMessage, caBundle string) (string, error) {
	var named struct {
		Kind string `json:"kind"`
	}
	if err := json.Unmarshal(object, &named); err != nil {
		return "", err
	}
	switch named.Kind {
	case "NodePool":
		var pool v1.NodePool
		if err := json.Unmarshal(object, &pool); err != nil {
			return "", err
		}
		return pool.Hash(), nil
	case "EC2NodeClass":
		return nodeClassHash(object, caBundle)
	}
	return "", fmt.Errorf("kind %q has no hash", named.Kind)
}

// nodeClassHash encodes an EC2NodeClass as the API server does before it decodes it: kubelet settings
// are hashed as they are written.
func nodeClassHash(object json.RawMessage, caBundle string) (string, error) {
	var stored map[string]any
	if err := apijson.Unmarshal(object, &stored); err != nil {
		return "", err
	}
	written, err := json.Marshal(stored)
	if err != nil {
		return "", err
	}
	var class awsv1.EC2NodeClass
	if err := json.Unmarshal(written, &class); err != nil {
		return "", err
	}
	return class.Hash(&caBundle), nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
