// Command hashes prints Karpenter's own hashes of NodePools and EC2NodeClasses.
//
// It reads objects from standard input, one JSON object after another, and prints a hash
// per line, in their order: of a NodePool as version v3 has it, of an EC2NodeClass as v6.
//
// The type and the way of hashing an EC2NodeClass are those of the module that is pinned,
// whose own hash is v5. Version v6 says the same of every field but one: settings of the
// kubelet, an open map since, are hashed as text, after the cluster's CA.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	awsv1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/mitchellh/hashstructure/v2"
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

func nodeClassHash(object json.RawMessage, caBundle string) (string, error) {
	open, kubelet, err := withoutKubelet(object)
	if err != nil {
		return "", err
	}
	var class awsv1.EC2NodeClass
	if err := json.Unmarshal(open, &class); err != nil {
		return "", err
	}
	hash, err := hashstructure.Hash(
		[]any{class.Spec, class.AMIFamily(), caBundle, kubelet},
		hashstructure.FormatV2,
		&hashstructure.HashOptions{SlicesAsSets: true, IgnoreZeroValue: true, ZeroNil: true},
	)
	return fmt.Sprint(hash), err
}

// withoutKubelet parts the settings of the kubelet from a class, and writes them as the API
// server does.
func withoutKubelet(object json.RawMessage) (json.RawMessage, string, error) {
	var class, spec map[string]json.RawMessage
	var kubelet map[string]any
	if err := json.Unmarshal(object, &class); err != nil {
		return nil, "", err
	}
	if err := json.Unmarshal(class["spec"], &spec); err != nil {
		return nil, "", err
	}
	if given, ok := spec["kubelet"]; ok {
		if err := apijson.Unmarshal(given, &kubelet); err != nil {
			return nil, "", err
		}
	}
	if len(kubelet) == 0 {
		kubelet = nil
	}
	text, err := json.Marshal(kubelet)
	if err != nil {
		return nil, "", err
	}
	delete(spec, "kubelet")
	if class["spec"], err = json.Marshal(spec); err != nil {
		return nil, "", err
	}
	open, err := json.Marshal(class)
	return open, string(text), err
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
