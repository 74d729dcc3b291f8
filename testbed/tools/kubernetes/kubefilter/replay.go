package main

import (
	"encoding/json"
	"math/rand"
	"slices"
	"sort"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	storage "k8s.io/component-helpers/storage/volume"
)

// attempts is how many careful orders are tried before a plan counts as impossible.
const attempts = 4

// many is the number of pods of a plan above which one careful order is tried: it takes seconds.
const many = 100

// zonal has the provisioners whose volumes only one zone reaches: the drivers of EBS.
var zonal = sets.New("ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com", "kubernetes.io/aws-ebs")

// replay binds the pods of a plan, each to its planned node, and returns those that the plugins refuse.
func replay(fresh func() *scheduler, bind map[string]string) (*scheduler, map[string]string) {
	// Most plans bind in any order, and that is the fastest to check.
	best := fresh()
	refused := best.order(bind, nil)
	for seed := range int64(attempts) {
		if len(refused) == 0 || seed > 0 && len(bind) > many {
			break
		}
		another := fresh()
		// Every other order binds all pods with rules about others that it can before it binds one without.
		careful := &care{random: rand.New(rand.NewSource(seed)), rulesFirst: seed%2 == 0}
		if left := another.order(bind, careful); len(left) < len(refused) {
			best, refused = another, left
		}
	}
	return best, refused
}

// care says how a careful order chooses the next pod.
type care struct {
	random     *rand.Rand
	rulesFirst bool
}

// class has equal pods that are planned for the same node.
type class struct {
	pods []*v1.Pod
	node string
}

// order binds the pods in some order, at best in a careful one.
func (s *scheduler) order(bind map[string]string, careful *care) map[string]string {
	refused := map[string]string{}
	classes := s.classes(bind, refused)
	if careful != nil {
		careful.random.Shuffle(len(classes), func(a, b int) { classes[a], classes[b] = classes[b], classes[a] })
	}
	for progress := true; progress; {
		progress = false
		if careful != nil {
			if chosen := s.next(classes, careful.rulesFirst); chosen != nil {
				progress = s.bindOne(chosen) == ""
			}
			continue
		}
		for _, c := range classes {
			for len(c.pods) > 0 && s.bindOne(c) == "" {
				progress = true
			}
		}
	}
	for _, c := range classes {
		for _, pod := range c.pods {
			refused[key(pod)] = s.bindOne(&class{pods: []*v1.Pod{pod}, node: c.node})
		}
	}
	return refused
}

// classes returns the planned pods by class, those with rules about other pods first. The pods are no longer pending.
func (s *scheduler) classes(bind map[string]string, refused map[string]string) []*class {
	alike := map[string]*class{}
	for _, name := range sorted(bind) {
		pod := s.pending[name]
		if pod == nil {
			refused[name] = "no such pending pod"
			continue
		}
		delete(s.pending, name)
		shape, err := json.Marshal([]any{pod.Namespace, pod.Labels, pod.Spec, bind[name], pod.Status.NominatedNodeName})
		check(err)
		if alike[string(shape)] == nil {
			alike[string(shape)] = &class{node: bind[name]}
		}
		alike[string(shape)].pods = append(alike[string(shape)].pods, pod)
	}
	classes := []*class{}
	for _, shape := range sorted(alike) {
		classes = append(classes, alike[shape])
	}
	sort.SliceStable(classes, func(a, b int) bool { return rank(classes[a].pods[0]) < rank(classes[b].pods[0]) })
	return classes
}

func rank(pod *v1.Pod) int {
	if len(pod.Spec.TopologySpreadConstraints) > 0 || pod.Spec.Affinity != nil {
		return 0
	}
	return 1
}

// next returns the class whose next pod is admitted and is best bound now, or nil. Best is a pod with rules about others
// that makes no such pod refused, and else the pod that makes the fewest refused and the most admitted, in the zone
// where the fewest wait.
func (s *scheduler) next(classes []*class, rulesFirst bool) *class {
	// Pods without rules about others are refused by none.
	var admitted, refused, others []*class
	for _, c := range classes {
		switch {
		case len(c.pods) == 0:
		case rank(c.pods[0]) > 0:
			others = append(others, c)
		case s.begin(c.pods[0]).refusal(c.node) == "":
			admitted = append(admitted, c)
		default:
			refused = append(refused, c)
		}
	}
	var best *class
	var least [2]int
	for _, c := range append(admitted, others...) {
		if rank(c.pods[0]) > 0 && best != nil && rulesFirst && rank(best.pods[0]) == 0 {
			break
		}
		if rank(c.pods[0]) > 0 && s.begin(c.pods[0]).refusal(c.node) != "" {
			continue
		}
		cost := [2]int{s.cost(c, admitted, refused), s.waiting(c.node, refused)}
		if rank(c.pods[0]) == 0 && cost[0] <= 0 {
			return c
		}
		if best == nil || slices.Compare(cost[:], least[:]) < 0 {
			best, least = c, cost
		}
	}
	return best
}

// cost returns how many more pods are refused once the next pod of a class is bound.
func (s *scheduler) cost(c *class, admitted, refused []*class) int {
	trial := on(c.pods[0], c.node)
	s.snapshot.bind(trial)
	defer s.snapshot.unbind(trial)
	cost := 0
	for _, other := range admitted {
		if other != c && s.begin(other.pods[0]).refusal(other.node) != "" {
			cost += len(other.pods)
		}
	}
	for _, other := range refused {
		if s.begin(other.pods[0]).refusal(other.node) == "" {
			cost -= len(other.pods)
		}
	}
	return cost
}

// waiting returns the number of pods that wait for the node, or for its zone.
func (s *scheduler) waiting(node string, refused []*class) int {
	number, zone := 0, s.zone(node)
	for _, other := range refused {
		if other.node == node || zone != "" && s.zone(other.node) == zone {
			number += len(other.pods)
		}
	}
	return number
}

func (s *scheduler) zone(node string) string {
	info := s.snapshot.byName[node]
	if info == nil {
		return ""
	}
	return info.Node().Labels[v1.LabelTopologyZone]
}

// bindOne binds a pod of the class if the plugins admit it, and otherwise returns why not.
func (s *scheduler) bindOne(c *class) string {
	pod := c.pods[0]
	cycle := s.begin(pod)
	if why := cycle.refusal(c.node); why != "" {
		return why
	}
	if status := s.profile.RunReservePluginsReserve(s.ctx, cycle.state, pod, c.node); !status.IsSuccess() {
		s.profile.RunReservePluginsUnreserve(s.ctx, cycle.state, pod, c.node)
		return status.Plugin() + ": " + status.Message()
	}
	c.pods = c.pods[1:]
	s.nominations.remove(pod)
	bound := on(pod, c.node)
	s.informers.set(bound)
	s.snapshot.bind(bound)
	s.provision(bound)
	s.allocate(bound)
	return ""
}

func on(pod *v1.Pod, node string) *v1.Pod {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	return bound
}

// provision creates the volumes for which the pod's node was chosen, in the zone of that node.
func (s *scheduler) provision(pod *v1.Pod) {
	core, classes := s.informers.Core().V1(), s.informers.Storage().V1().StorageClasses().Lister()
	for _, volume := range pod.Spec.Volumes {
		name := claimName(pod, &volume)
		claim, err := core.PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace).Get(name)
		if name == "" || err != nil || claim.Spec.VolumeName != "" {
			continue
		}
		class, err := classes.Get(storage.GetPersistentVolumeClaimClass(claim))
		if err != nil || class.Provisioner == storage.NotSupportedProvisioner {
			continue
		}
		made := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "made-for-" + pod.Namespace + "-" + name}}
		made.Spec.StorageClassName = class.Name
		made.Spec.AccessModes = claim.Spec.AccessModes
		made.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage]}
		made.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: name, UID: claim.UID}
		made.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: made.Name}
		zone := s.zone(pod.Spec.NodeName)
		if zone != "" && zonal.Has(class.Provisioner) {
			in := v1.NodeSelectorRequirement{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{zone}}
			term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{in}}
			made.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}}
		}
		s.informers.set(stored(made, false))
		bound := claim.DeepCopy()
		bound.Spec.VolumeName = made.Name
		bound.Status.Phase = v1.ClaimBound
		s.version++
		bound.ResourceVersion = strconv.Itoa(s.version)
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, storage.AnnBindCompleted, "yes")
		s.informers.set(bound)
	}
}

// allocate stores the devices that were reserved for the claims of a bound pod, as kube-scheduler does before it binds.
func (s *scheduler) allocate(pod *v1.Pod) {
	for _, use := range pod.Spec.ResourceClaims {
		if use.ResourceClaimName == nil {
			continue
		}
		claim, err := s.informers.Resource().V1().ResourceClaims().Lister().ResourceClaims(pod.Namespace).Get(*use.ResourceClaimName)
		check(err)
		if reserved := s.tracker.GetPendingAllocation(claim.UID); reserved != nil {
			allocated := claim.DeepCopy()
			allocated.Status.Allocation = reserved
			s.version++
			allocated.ResourceVersion = strconv.Itoa(s.version)
			s.informers.set(allocated)
			s.tracker.MaybeRemoveClaimPendingAllocation(claim.UID, true)
		}
	}
}

func claimName(pod *v1.Pod, volume *v1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name
	}
	return ""
}
