package main

import (
	"fmt"
	"sort"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// snapshot is what the plugins see of nodes and bound pods. Unlike kube-scheduler's own, it changes with each
// binding, so that a replay needs one instance of the plugins.
type snapshot struct {
	// Groups of pods are not served: their feature is off by default.
	fwk.SharedLister
	byName map[string]*framework.NodeInfo
	names  []string
}

func newSnapshot() *snapshot { return &snapshot{byName: map[string]*framework.NodeInfo{}} }

func (s *snapshot) addNode(node *v1.Node) {
	info := framework.NewNodeInfo()
	info.SetNode(node)
	s.byName[node.Name] = info
	place := sort.SearchStrings(s.names, node.Name)
	s.names = append(s.names[:place], append([]string{node.Name}, s.names[place:]...)...)
}

func (s *snapshot) removeNode(name string) {
	delete(s.byName, name)
	place := sort.SearchStrings(s.names, name)
	s.names = append(s.names[:place], s.names[place+1:]...)
}

// bind counts a pod on its node. A pod whose node does not exist counts nowhere.
func (s *snapshot) bind(pod *v1.Pod) {
	if info := s.byName[pod.Spec.NodeName]; info != nil {
		info.AddPod(pod)
	}
}

func (s *snapshot) unbind(pod *v1.Pod) {
	check(s.byName[pod.Spec.NodeName].RemovePod(klog.Background(), pod))
}

func (s *snapshot) NodeInfos() fwk.NodeInfoLister       { return s }
func (s *snapshot) StorageInfos() fwk.StorageInfoLister { return s }

func (s *snapshot) List() ([]fwk.NodeInfo, error) {
	return s.with(func(*framework.NodeInfo) bool { return true })
}

func (s *snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return s.with(func(info *framework.NodeInfo) bool { return len(info.PodsWithAffinity) > 0 })
}

func (s *snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return s.with(func(info *framework.NodeInfo) bool { return len(info.PodsWithRequiredAntiAffinity) > 0 })
}

func (s *snapshot) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return s.with(func(info *framework.NodeInfo) bool {
		return len(info.PodsWithRequiredNonHostScopedAntiAffinity) > 0
	})
}

func (s *snapshot) with(meets func(*framework.NodeInfo) bool) ([]fwk.NodeInfo, error) {
	infos := []fwk.NodeInfo{}
	for _, name := range s.names {
		if info := s.byName[name]; meets(info) {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func (s *snapshot) Get(name string) (fwk.NodeInfo, error) {
	info := s.byName[name]
	if info == nil {
		return nil, fmt.Errorf("the world has no node %q", name)
	}
	return info, nil
}

func (s *snapshot) IsPVCUsedByPods(key string) bool {
	for _, info := range s.byName {
		if info.PVCRefCounts[key] > 0 {
			return true
		}
	}
	return false
}

// nominations lists the pods that kube-scheduler has nominated for a node.
type nominations struct {
	fwk.PodNominator
	byNode map[string][]fwk.PodInfo
}

func (n nominations) NominatedPodsForNode(name string) []fwk.PodInfo { return n.byNode[name] }

func (n nominations) add(pod *v1.Pod) {
	info, err := framework.NewPodInfo(pod)
	check(err)
	name := pod.Status.NominatedNodeName
	n.byNode[name] = append(n.byNode[name], info)
}

func (n nominations) remove(pod *v1.Pod) {
	name := pod.Status.NominatedNodeName
	for place, info := range n.byNode[name] {
		if info.GetPod().UID == pod.UID {
			n.byNode[name] = append(n.byNode[name][:place:place], n.byNode[name][place+1:]...)
			return
		}
	}
}
