package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kwokapis "sigs.k8s.io/karpenter/kwok/apis"
	kwokv1alpha1 "sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	kwokoptions "sigs.k8s.io/karpenter/kwok/options"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	requirements "sigs.k8s.io/karpenter/pkg/scheduling"
)

var errNotAsked = errors.New("a recorded world launches nothing")

// cluster returns a client of the world's objects, and the pending pods.
func cluster(world World) (*memory, []*corev1.Pod) {
	var waiting []*corev1.Pod
	for i, pod := range world.Pods {
		if pod.UID == "" {
			pod.UID = types.UID(fmt.Sprintf("pod-%06d", i))
		}
		if pod.Spec.NodeName == "" {
			waiting = append(waiting, pod)
		}
	}
	for i, pool := range world.NodePools {
		if pool.UID == "" {
			pool.UID = types.UID(fmt.Sprintf("pool-%06d", i))
		}
		pool.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{
			Group: kwokapis.Group, Kind: "KWOKNodeClass", Name: "default"}
		pool.StatusConditions().SetTrue(v1.ConditionTypeValidationSucceeded)
		pool.StatusConditions().SetTrue(v1.ConditionTypeNodeClassReady)
		pool.StatusConditions().SetTrue(status.ConditionReady)
	}
	overlays := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(all(world.NodeOverlays)...).
		WithStatusSubresource(&v1alpha1.NodeOverlay{}).Build()
	return inMemory(world, overlays), waiting
}

func all[T client.Object](found []T) []client.Object {
	objects := make([]client.Object, 0, len(found))
	for _, object := range found {
		objects = append(objects, object)
	}
	return objects
}

// catalogue is a cloud provider that only lists instance types.
type catalogue struct{ instanceTypes []*cloudprovider.InstanceType }

func (c *catalogue) GetInstanceTypes(context.Context, *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	return c.instanceTypes, nil
}
func (c *catalogue) Create(context.Context, *v1.NodeClaim) (*v1.NodeClaim, error) {
	return nil, errNotAsked
}
func (c *catalogue) Delete(context.Context, *v1.NodeClaim) error { return errNotAsked }
func (c *catalogue) Get(context.Context, string) (*v1.NodeClaim, error) {
	return nil, errNotAsked
}
func (c *catalogue) List(context.Context) ([]*v1.NodeClaim, error) { return nil, nil }
func (c *catalogue) IsDrifted(context.Context, *v1.NodeClaim) (cloudprovider.DriftReason, error) {
	return "", nil
}
func (c *catalogue) Reboot(context.Context, *v1.NodeClaim, string) error { return errNotAsked }
func (c *catalogue) RepairPolicies() []cloudprovider.RepairPolicy        { return nil }
func (c *catalogue) Name() string                                        { return "recorded" }
func (c *catalogue) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&kwokv1alpha1.KWOKNodeClass{}}
}

type wireType struct {
	Name         string                           `json:"name"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
	Offerings    []wireOffering                   `json:"offerings"`
	Capacity     corev1.ResourceList              `json:"capacity"`
	Overhead     corev1.ResourceList              `json:"overhead"`
}

type wireOffering struct {
	Requirements map[string]string `json:"requirements"`
	Price        float64           `json:"price"`
	Available    *bool             `json:"available"`
	Reserved     int               `json:"reservationCapacity"`
}

// readInstanceTypes reads the world's instance types, or a file in the format of Karpenter's kwok
// provider.
func readInstanceTypes(raw json.RawMessage, path string) ([]*cloudprovider.InstanceType, error) {
	var file struct {
		File string `json:"file"`
	}
	if err := json.Unmarshal(raw, &file); err == nil && file.File != "" {
		if !filepath.IsAbs(file.File) {
			file.File = filepath.Join(filepath.Dir(path), file.File)
		}
		return kwok.ConstructInstanceTypes(
			kwokoptions.ToContext(context.Background(), &kwokoptions.Options{InstanceTypesFilePath: file.File}))
	}
	var wire []wireType
	if err := json.Unmarshal(raw, &wire); err != nil {
		return nil, fmt.Errorf("instanceTypes: %w", err)
	}
	var found []*cloudprovider.InstanceType
	for _, one := range wire {
		found = append(found, instanceType(one))
	}
	return found, nil
}

func instanceType(wire wireType) *cloudprovider.InstanceType {
	known := requirements.NewNodeSelectorRequirements(wire.Requirements...)
	for key := range known {
		v1.WellKnownLabels.Insert(key)
	}
	if !known.Has(corev1.LabelInstanceTypeStable) {
		known.Add(requirements.NewRequirement(
			corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, wire.Name))
	}
	values := map[string][]string{}
	var offerings cloudprovider.Offerings
	for _, offering := range wire.Offerings {
		labels := requirements.NewLabelRequirements(offering.Requirements)
		for key, value := range offering.Requirements {
			v1.WellKnownLabels.Insert(key)
			values[key] = append(values[key], value)
		}
		offerings = append(offerings, &cloudprovider.Offering{
			Requirements: labels, Price: offering.Price,
			Available:           offering.Available == nil || *offering.Available,
			ReservationCapacity: offering.Reserved})
	}
	for key, list := range values {
		if !known.Has(key) {
			known.Add(requirements.NewRequirement(key, corev1.NodeSelectorOpIn, list...))
		}
	}
	if _, ok := wire.Capacity[corev1.ResourcePods]; !ok {
		wire.Capacity[corev1.ResourcePods] = resource.MustParse("110")
	}
	return &cloudprovider.InstanceType{
		Name: wire.Name, Requirements: known, Offerings: offerings, Capacity: wire.Capacity,
		Overhead: &cloudprovider.InstanceTypeOverhead{KubeReserved: wire.Overhead}}
}
