package main

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const podsOfNode = "spec.nodeName"

// memory answers reads as the cache of a controller does: from maps, with an index of pods by node,
// and with a copy of each object unless the caller needs none. The fake client would encode and
// decode every object as JSON, and scan all pods to find those of a node. It holds only the overlays.
type memory struct {
	client.Client

	pods                   *table[corev1.Pod, *corev1.Pod]
	nodes                  *table[corev1.Node, *corev1.Node]
	nodeClaims             *table[v1.NodeClaim, *v1.NodeClaim]
	nodePools              *table[v1.NodePool, *v1.NodePool]
	podDisruptionBudgets   *table[policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]
	daemonSets             *table[appsv1.DaemonSet, *appsv1.DaemonSet]
	namespaces             *table[corev1.Namespace, *corev1.Namespace]
	persistentVolumes      *table[corev1.PersistentVolume, *corev1.PersistentVolume]
	persistentVolumeClaims *table[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	storageClasses         *table[storagev1.StorageClass, *storagev1.StorageClass]
	csiNodes               *table[storagev1.CSINode, *storagev1.CSINode]
}

func inMemory(world World, rest client.Client) *memory {
	pods := newTable[corev1.Pod](nil)
	pods.nodeOf = func(pod *corev1.Pod) string { return pod.Spec.NodeName }
	for _, pod := range world.Pods {
		pods.put(pod)
	}
	return &memory{
		Client:                 rest,
		pods:                   pods,
		nodes:                  newTable(world.Nodes),
		nodeClaims:             newTable(world.NodeClaims),
		nodePools:              newTable(world.NodePools),
		podDisruptionBudgets:   newTable(world.PodDisruptionBudgets),
		daemonSets:             newTable(world.DaemonSets),
		namespaces:             newTable(world.Namespaces),
		persistentVolumes:      newTable(world.PersistentVolumes),
		persistentVolumeClaims: newTable(world.PersistentVolumeClaims),
		storageClasses:         newTable(world.StorageClasses),
		csiNodes:               newTable(world.CSINodes),
	}
}

// Get returns one object.
func (m *memory) Get(ctx context.Context, key client.ObjectKey, found client.Object, options ...client.GetOption) error {
	switch out := found.(type) {
	case *corev1.Pod:
		return m.pods.get(key, out)
	case *corev1.Node:
		return m.nodes.get(key, out)
	case *v1.NodeClaim:
		return m.nodeClaims.get(key, out)
	case *v1.NodePool:
		return m.nodePools.get(key, out)
	case *corev1.PersistentVolume:
		// The engine requests volumes in the namespace of a pod; an API server ignores it.
		return m.persistentVolumes.get(client.ObjectKey{Name: key.Name}, out)
	case *corev1.PersistentVolumeClaim:
		return m.persistentVolumeClaims.get(key, out)
	case *storagev1.StorageClass:
		return m.storageClasses.get(key, out)
	case *storagev1.CSINode:
		return m.csiNodes.get(key, out)
	}
	return m.Client.Get(ctx, key, found, options...)
}

// List returns all matching objects.
func (m *memory) List(ctx context.Context, found client.ObjectList, options ...client.ListOption) error {
	chosen := (&client.ListOptions{}).ApplyOptions(options)
	switch out := found.(type) {
	case *corev1.PodList:
		return m.pods.list(&out.Items, chosen)
	case *corev1.NodeList:
		return m.nodes.list(&out.Items, chosen)
	case *v1.NodeClaimList:
		return m.nodeClaims.list(&out.Items, chosen)
	case *v1.NodePoolList:
		return m.nodePools.list(&out.Items, chosen)
	case *policyv1.PodDisruptionBudgetList:
		return m.podDisruptionBudgets.list(&out.Items, chosen)
	case *appsv1.DaemonSetList:
		return m.daemonSets.list(&out.Items, chosen)
	case *corev1.NamespaceList:
		return m.namespaces.list(&out.Items, chosen)
	}
	return m.Client.List(ctx, found, options...)
}

type object[T any] interface {
	*T
	client.Object
	DeepCopyInto(*T)
}

// table holds objects of one kind in the order of their creation.
type table[T any, P object[T]] struct {
	rows   map[types.NamespacedName]P
	order  []types.NamespacedName
	nodeOf func(P) string
	byNode map[string][]types.NamespacedName
}

func newTable[T any, P object[T]](objects []P) *table[T, P] {
	made := &table[T, P]{rows: map[types.NamespacedName]P{}, byNode: map[string][]types.NamespacedName{}}
	for _, one := range objects {
		made.put(one)
	}
	return made
}

func (t *table[T, P]) put(one P) {
	key := client.ObjectKeyFromObject(one)
	if before, ok := t.rows[key]; !ok {
		t.order = append(t.order, key)
	} else if t.nodeOf != nil {
		t.byNode[t.nodeOf(before)] = without(t.byNode[t.nodeOf(before)], key)
	}
	t.rows[key] = one
	if t.nodeOf != nil {
		t.byNode[t.nodeOf(one)] = append(t.byNode[t.nodeOf(one)], key)
	}
}

func (t *table[T, P]) remove(key types.NamespacedName) {
	one, ok := t.rows[key]
	if !ok {
		return
	}
	delete(t.rows, key)
	t.order = without(t.order, key)
	if t.nodeOf != nil {
		t.byNode[t.nodeOf(one)] = without(t.byNode[t.nodeOf(one)], key)
	}
}

func without(keys []types.NamespacedName, key types.NamespacedName) []types.NamespacedName {
	place := slices.Index(keys, key)
	return slices.Delete(keys, place, place+1)
}

func (t *table[T, P]) get(key types.NamespacedName, out P) error {
	one, ok := t.rows[key]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: fmt.Sprintf("%T", one)}, key.Name)
	}
	one.DeepCopyInto(out)
	return nil
}

func (t *table[T, P]) list(out *[]T, chosen *client.ListOptions) error {
	keys := t.order
	if chosen.FieldSelector != nil {
		node, exact := chosen.FieldSelector.RequiresExactMatch(podsOfNode)
		if !exact || t.nodeOf == nil {
			return fmt.Errorf("%T is not indexed by %s", out, chosen.FieldSelector)
		}
		keys = t.byNode[node]
	}
	*out = make([]T, 0, len(keys))
	for _, key := range keys {
		one := t.rows[key]
		if chosen.Namespace != "" && chosen.Namespace != key.Namespace {
			continue
		}
		if chosen.LabelSelector != nil && !chosen.LabelSelector.Matches(labels.Set(one.GetLabels())) {
			continue
		}
		if chosen.UnsafeDisableDeepCopy != nil && *chosen.UnsafeDisableDeepCopy {
			*out = append(*out, *one)
			continue
		}
		*out = append(*out, *new(T))
		one.DeepCopyInto(&(*out)[len(*out)-1])
	}
	return nil
}
