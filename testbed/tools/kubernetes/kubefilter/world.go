package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
)

// world is the part of a recorded world that the plugins read.
type world struct {
	Pods                   []*v1.Pod                       `json:"pods"`
	Nodes                  []*v1.Node                      `json:"nodes"`
	Namespaces             []*v1.Namespace                 `json:"namespaces"`
	PersistentVolumes      []*v1.PersistentVolume          `json:"persistentVolumes"`
	PersistentVolumeClaims []*v1.PersistentVolumeClaim     `json:"persistentVolumeClaims"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageClasses"`
	CSINodes               []*storagev1.CSINode            `json:"csiNodes"`
	CSIDrivers             []*storagev1.CSIDriver          `json:"csiDrivers"`
	CSIStorageCapacities   []*storagev1.CSIStorageCapacity `json:"csiStorageCapacities"`
	VolumeAttachments      []*storagev1.VolumeAttachment   `json:"volumeAttachments"`
	DeviceClasses          []*resourcev1.DeviceClass       `json:"deviceClasses"`
	ResourceClaims         []*resourcev1.ResourceClaim     `json:"resourceClaims"`
	ResourceSlices         []*resourcev1.ResourceSlice     `json:"resourceSlices"`
}

// stored gives an object what the API server would have given it, and returns it.
func stored[T interface {
	metav1.Object
	runtime.Object
}](object T, namespaced bool) T {
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace("default")
	}
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("%T-%s-%s", object, object.GetNamespace(), object.GetName())))
	}
	// The caches of volumes and claims compare versions.
	if object.GetResourceVersion() == "" {
		object.SetResourceVersion("1")
	}
	legacyscheme.Scheme.Default(object)
	return object
}

// created returns a pod as the API server stores it on creation, with the pod's own status, and an error if the API
// server refuses it.
func created(pod *v1.Pod) (*v1.Pod, error) {
	pod = stored(pod, true)
	var internal api.Pod
	check(legacyscheme.Scheme.Convert(pod, &internal, nil))
	podregistry.Strategy.PrepareForCreate(context.Background(), &internal)
	refused := podregistry.Strategy.Validate(context.Background(), &internal)
	var created v1.Pod
	check(legacyscheme.Scheme.Convert(&internal, &created, nil))
	created.Status = pod.Status
	return &created, refused.ToAggregate()
}

// isPending reports whether kube-scheduler schedules a pod.
func isPending(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && len(pod.Spec.SchedulingGates) == 0 && pod.DeletionTimestamp == nil && !hasEnded(pod)
}

func hasEnded(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func key(object metav1.Object) string { return object.GetNamespace() + "/" + object.GetName() }

// fill adds the objects of a world, except its pods and nodes.
func (f *factory) fill(w *world) {
	addAll(f, w.Namespaces, false)
	addAll(f, w.PersistentVolumes, false)
	for _, claim := range w.PersistentVolumeClaims {
		// A recorded claim with a volume is one whose binding is complete.
		if claim.Spec.VolumeName != "" && claim.Status.Phase == "" {
			claim.Status.Phase = v1.ClaimBound
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, storage.AnnBindCompleted, "yes")
		}
	}
	addAll(f, w.PersistentVolumeClaims, true)
	addAll(f, w.StorageClasses, false)
	addAll(f, w.CSINodes, false)
	addAll(f, w.CSIDrivers, false)
	addAll(f, w.CSIStorageCapacities, true)
	addAll(f, w.VolumeAttachments, false)
	addAll(f, w.DeviceClasses, false)
	addAll(f, w.ResourceClaims, true)
	addAll(f, w.ResourceSlices, false)
}

func addAll[T interface {
	metav1.Object
	runtime.Object
}](f *factory, objects []T, namespaced bool) {
	for _, object := range objects {
		f.set(stored(object, namespaced))
	}
}

// claimed creates the claims of a pod's ephemeral volumes that the world does not have yet.
func (f *factory) claimed(pod *v1.Pod) {
	for _, volume := range pod.Spec.Volumes {
		if volume.Ephemeral == nil || volume.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		claim := &v1.PersistentVolumeClaim{Spec: volume.Ephemeral.VolumeClaimTemplate.Spec}
		claim.Name, claim.Namespace = claimName(pod, &volume), pod.Namespace
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
		if _, exists, _ := f.of(claim).indexer.Get(claim); !exists {
			f.set(stored(claim, true))
		}
	}
}
