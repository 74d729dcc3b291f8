package main

import (
	"context"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

// scheduler is kube-scheduler's default profile, and the world that it sees.
type scheduler struct {
	ctx         context.Context
	profile     framework.Framework
	informers   *factory
	snapshot    *snapshot
	nominations nominations
	pending     map[string]*v1.Pod
	tracker     fwk.ResourceClaimTracker
	// version is that of the last object that a replay changed.
	version int
}

func newScheduler(ctx context.Context, q *question) *scheduler {
	s := &scheduler{
		ctx:         ctx,
		informers:   newFactory(),
		snapshot:    newSnapshot(),
		nominations: nominations{byNode: map[string][]fwk.PodInfo{}},
		pending:     map[string]*v1.Pod{},
		version:     1,
	}
	s.add(&q.World)
	s.add(&q.Plan.world)
	configuration, err := latest.Default()
	check(err)
	s.profile, err = frameworkruntime.NewFramework(ctx, plugins.NewInTreeRegistry(), &configuration.Profiles[0],
		frameworkruntime.WithInformerFactory(s.informers),
		frameworkruntime.WithSnapshotSharedLister(s.snapshot),
		frameworkruntime.WithPodNominator(s.nominations),
		frameworkruntime.WithParallelism(1),
		frameworkruntime.WithSharedDRAManager(s.devices()),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(s.informers.Storage().V1().CSINodes().Lister())))
	check(err)
	return s
}

// devices returns the part of kube-scheduler that tracks devices and their claims.
func (s *scheduler) devices() fwk.SharedDRAManager {
	enabled := feature.DefaultFeatureGate.Enabled
	api := s.informers.Resource().V1()
	options := resourceslicetracker.Options{
		EnableDeviceTaintRules:   enabled(features.DRADeviceTaintRules),
		EnableConsumableCapacity: enabled(features.DRAConsumableCapacity),
		SliceInformer:            api.ResourceSlices(),
	}
	if options.EnableDeviceTaintRules {
		options.TaintInformer = api.DeviceTaintRules()
	}
	slices, err := resourceslicetracker.StartTracker(s.ctx, options)
	check(err)
	claims := assumecache.NewAssumeCache(klog.Background(), api.ResourceClaims().Informer(), "ResourceClaim", "", nil)
	manager := dynamicresources.NewDRAManager(s.ctx, claims, slices, s.informers)
	s.tracker = manager.ResourceClaims()
	if enabled(features.DRAExtendedResource) {
		byExtendedResource := manager.DeviceClassResolver().(*extendedresourcecache.ExtendedResourceCache)
		_, err = api.DeviceClasses().Informer().AddEventHandler(byExtendedResource)
		check(err)
	}
	return manager
}

// add adds a world to the one that the scheduler sees, and returns the names of the nodes.
func (s *scheduler) add(w *world) []string {
	s.informers.fill(w)
	names := []string{}
	for _, node := range w.Nodes {
		stored(node, false)
		s.informers.set(node)
		s.snapshot.addNode(node)
		names = append(names, node.Name)
	}
	for _, recorded := range w.Pods {
		// A pod that was stored already has its expressions twice now, which would be refused on creation.
		pod, _ := created(recorded)
		if hasEnded(pod) {
			continue
		}
		s.informers.set(pod)
		s.informers.claimed(pod)
		switch {
		case isPending(pod):
			s.pending[key(pod)] = pod
			if pod.Status.NominatedNodeName != "" {
				s.nominations.add(pod)
			}
		case pod.Spec.NodeName != "":
			s.snapshot.bind(pod)
		}
	}
	return names
}

// remove removes a world of nodes and their running pods.
func (s *scheduler) remove(w *world) {
	for _, pod := range w.Pods {
		s.informers.remove(pod)
	}
	for _, node := range w.Nodes {
		s.informers.remove(node)
		s.snapshot.removeNode(node.Name)
	}
	for _, node := range w.CSINodes {
		s.informers.remove(node)
	}
}

// judge writes the verdicts on the pending pods and these nodes.
func (s *scheduler) judge(verdicts map[string]map[string]string, nodes []string) {
	for name, pod := range s.pending {
		if verdicts[name] == nil {
			verdicts[name] = map[string]string{}
		}
		cycle := s.begin(pod)
		for _, node := range nodes {
			verdicts[name][node] = cycle.refusal(node)
		}
	}
}

// cycle is one scheduling cycle of a pod.
type cycle struct {
	*scheduler
	pod    *v1.Pod
	state  *framework.CycleState
	result *fwk.PreFilterResult
	status *fwk.Status
}

func (s *scheduler) begin(pod *v1.Pod) cycle {
	state := framework.NewCycleState()
	result, status, _ := s.profile.RunPreFilterPlugins(s.ctx, state, pod)
	return cycle{s, pod, state, result, status}
}

// refusal returns why the pod may not run on a node, or an empty text.
func (c cycle) refusal(node string) string {
	if !c.status.IsSuccess() {
		return c.status.Plugin() + ": " + c.status.Message()
	}
	if !c.result.AllNodes() && !c.result.NodeNames.Has(node) {
		return "PreFilter: not among the nodes of its affinity, volumes or devices"
	}
	info, err := c.snapshot.Get(node)
	if err != nil {
		return err.Error()
	}
	status := c.profile.RunFilterPluginsWithNominatedPods(c.ctx, c.state, c.pod, info)
	if status.IsSuccess() {
		return ""
	}
	return status.Plugin() + ": " + status.Message()
}

// sorted returns the keys of a map in order, so that answers can be repeated.
func sorted[T any](of map[string]T) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
