package main

import (
	"encoding/json"
	"math/rand"
	"sort"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storage "k8s.io/component-helpers/storage/volume"
)

// attempts is how many careful orders are tried before a plan counts as impossible.
const attempts = 4

// fileSystem is the provisioner whose volumes every zone reaches.
const fileSystem = "efs.csi.aws.com"

// replay binds the pods of a plan, each to its planned node, and returns those that the plugins refuse.
func replay(fresh func() *scheduler, bind map[string]string) (*scheduler, map[string]string) {
	// Most plans bind in any order, and that is the fastest to check.
	best := fresh()
	refused := best.order(bind, nil)
	for seed := range attempts {
		if len(refused) == 0 {
			break
		}
		another := fresh()
		if left := another.order(bind, rand.New(rand.NewSource(int64(seed)))); len(left) < len(refused) {
			best, refused = another, left
		}
	}
	return best, refused
}

// class has equal pods that are planned for the same node.
type class struct {
	pods []*v1.Pod
	node string
}

// order binds the pods in some order. If it has random numbers, it is careful: it prefers the pod after which the
// plugins refuse the fewest of the others.
func (s *scheduler) order(bind map[string]string, random *rand.Rand) map[string]string {
	refused := map[string]string{}
	classes := s.classes(bind, refused)
	if random != nil {
		random.Shuffle(len(classes), func(a, b int) { classes[a], classes[b] = classes[b], classes[a] })
	}
	for progress := true; progress; {
		progress = false
		if random != nil {
			if chosen := s.harmless(classes); chosen != nil {
				s.bindOne(chosen)
				progress = true
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
			refused[key(pod)] = s.begin(pod).refusal(c.node)
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

// harmless returns the class whose next pod is admitted and makes the fewest other pods refused, or nil.
func (s *scheduler) harmless(classes []*class) *class {
	admitted := []*class{}
	for _, c := range classes {
		if len(c.pods) > 0 && s.begin(c.pods[0]).refusal(c.node) == "" {
			admitted = append(admitted, c)
		}
	}
	var best *class
	least := 0
	for _, c := range admitted {
		trial := on(c.pods[0], c.node)
		s.snapshot.bind(trial)
		harm := 0
		for _, other := range admitted {
			rest := other.pods
			if other == c {
				rest = rest[1:]
			}
			if len(rest) > 0 && s.begin(rest[0]).refusal(other.node) != "" {
				harm += len(rest)
			}
		}
		s.snapshot.unbind(trial)
		if best == nil || harm < least {
			best, least = c, harm
		}
		if harm == 0 {
			break
		}
	}
	return best
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
		zone := s.snapshot.byName[pod.Spec.NodeName].Node().Labels[v1.LabelTopologyZone]
		if zone != "" && class.Provisioner != fileSystem {
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

func claimName(pod *v1.Pod, volume *v1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return pod.Name + "-" + volume.Name
	}
	return ""
}
