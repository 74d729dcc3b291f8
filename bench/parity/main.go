// Command parity solves a recorded world with Karpenter's own scheduling engine.
//
// It reads a world as JSON (the format of docs/reference/formats.md), lets the unmodified
// engine of sigs.k8s.io/karpenter schedule the pending pods, and prints the answer
// in the format in which `python -m controller solve` prints Joiner's.
//
//	parity [-repeat N] WORLD.json
//	parity -batch < WORLDS > ANSWERS
//	parity -questions < QUESTIONS > ANSWERS
//
// With -batch it reads worlds from standard input, one JSON object after another, and
// prints an answer per line, in their order; a world that cannot be read or solved is
// answered with {"error": "why"}. With -questions it reads what questions.go describes:
// worlds to schedule or to disrupt, each with its own time.
//
// Times are measured as in Karpenter's own benchmark: instance types, NodePools and topology are
// prepared first, and `seconds` is the time of Solve alone; `setupSeconds` is the preparation.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/test"
)

// World is the input of the engine; every key except pods and instanceTypes is optional.
type World struct {
	Pods                   []*corev1.Pod                   `json:"pods"`
	Nodes                  []*corev1.Node                  `json:"nodes"`
	NodeClaims             []*v1.NodeClaim                 `json:"nodeClaims"`
	NodePools              []*v1.NodePool                  `json:"nodePools"`
	DaemonSets             []*appsv1.DaemonSet             `json:"daemonSets"`
	NodeOverlays           []*v1alpha1.NodeOverlay         `json:"nodeOverlays"`
	Namespaces             []*corev1.Namespace             `json:"namespaces"`
	PodDisruptionBudgets   []*policyv1.PodDisruptionBudget `json:"podDisruptionBudgets"`
	PersistentVolumes      []*corev1.PersistentVolume      `json:"persistentVolumes"`
	PersistentVolumeClaims []*corev1.PersistentVolumeClaim `json:"persistentVolumeClaims"`
	StorageClasses         []*storagev1.StorageClass       `json:"storageClasses"`
	CSINodes               []*storagev1.CSINode            `json:"csiNodes"`
	Settings               map[string]string               `json:"settings"`
	InstanceTypes          json.RawMessage                 `json:"instanceTypes"`
}

// Answer is the result of the engine; prices are in $/h.
type Answer struct {
	NewNodes      []NewNode           `json:"newNodes"`
	ExistingNodes map[string][]string `json:"existingNodes"`
	Unschedulable map[string][]string `json:"unschedulable"`
	Cost          float64             `json:"cost"`
	LowerBound    float64             `json:"lowerBound"`
	Seconds       float64             `json:"seconds"`
	SetupSeconds  float64             `json:"setupSeconds"`
	Repetitions   []float64           `json:"repetitions"`
}

// NewNode is a node to launch.
type NewNode struct {
	NodePool      string                           `json:"nodePool"`
	InstanceTypes []string                         `json:"instanceTypes"`
	Requirements  []corev1.NodeSelectorRequirement `json:"requirements"`
	Price         float64                          `json:"price"`
	Pods          []string                         `json:"pods"`
}

func main() {
	repeat := flag.Int("repeat", 1, "solve so many times; seconds is the median")
	many := flag.Bool("batch", false, "read worlds from standard input, one after another")
	questions := flag.Bool("questions", false, "read questions from standard input, one after another")
	flag.Parse()
	log.SetLogger(logging.NopLogger)
	cloudprovider.ReservationIDLabel = "karpenter.k8s.aws/capacity-reservation-id"
	if *many || *questions {
		answerer := one
		if *questions {
			answerer = answered
		}
		if err := batch(os.Stdin, os.Stdout, answerer); err != nil {
			fmt.Fprintln(os.Stderr, "parity:", err)
			os.Exit(1)
		}
		return
	}
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: parity [-repeat N] WORLD.json, parity -batch, or parity -questions")
		os.Exit(2)
	}
	answer, err := ask(flag.Arg(0), *repeat)
	if err != nil {
		fmt.Fprintln(os.Stderr, "parity:", err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, "parity:", err)
		os.Exit(1)
	}
}

func ask(path string, repeat int) (*Answer, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	world, instanceTypes, err := read(raw, path)
	if err != nil {
		return nil, err
	}
	var runs []*Answer
	for range repeat {
		run, err := solve(world, instanceTypes, clock.RealClock{})
		if err != nil {
			return nil, err
		}
		runs = append(runs, run)
	}
	sort.Slice(runs, func(i, j int) bool { return runs[i].Seconds < runs[j].Seconds })
	median := runs[len(runs)/2]
	for _, run := range runs {
		median.Repetitions = append(median.Repetitions, run.Seconds)
	}
	return median, nil
}

func read(raw []byte, path string) (World, []*cloudprovider.InstanceType, error) {
	var world World
	if err := json.Unmarshal(raw, &world); err != nil {
		return world, nil, fmt.Errorf("%s is not a world: %w", path, err)
	}
	instanceTypes, err := readInstanceTypes(world.InstanceTypes, path)
	return world, instanceTypes, err
}

// batch solves one world after another; labels that a world registers are removed before the next.
func batch(in io.Reader, out io.Writer, answerer func([]byte) (any, error)) error {
	wellKnown := v1.WellKnownLabels.Clone()
	worlds, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var raw json.RawMessage
		if err := worlds.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("not a stream of worlds: %w", err)
		}
		v1.WellKnownLabels = wellKnown.Clone()
		answer, err := careful(raw, answerer)
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
}

func careful(raw []byte, answerer func([]byte) (any, error)) (answer any, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the engine panicked: %v", reason)
		}
	}()
	return answerer(raw)
}

func one(raw []byte) (any, error) {
	world, instanceTypes, err := read(raw, "standard input")
	if err != nil {
		return nil, err
	}
	return solve(world, instanceTypes, clock.RealClock{})
}

func solve(world World, instanceTypes []*cloudprovider.InstanceType, clk clock.Clock) (*Answer, error) {
	engine, err := prepared(world, instanceTypes, clk, "provisioner")
	if err != nil {
		return nil, err
	}
	ctx, provisioner, mirror := engine.ctx, engine.provisioner, engine.mirror
	valid, refused := validated(ctx, provisioner, engine.waiting)

	began := time.Now()
	scheduler, err := provisioner.NewScheduler(ctx, valid, mirror.DeepCopyNodes().Active(),
		sets.New[types.UID](), solverOptions(ctx)...)
	if err != nil {
		return nil, fmt.Errorf("preparing: %w", err)
	}
	ready := time.Now()
	results, err := scheduler.Solve(ctx, valid)
	if err != nil {
		return nil, fmt.Errorf("solving: %w", err)
	}
	solved := time.Now()
	answer := written(results.TruncateInstanceTypes(ctx, scheduling.MaxInstanceTypes))
	for pod, reason := range refused {
		answer.Unschedulable[pod] = []string{reason.Error()}
	}
	answer.Seconds, answer.SetupSeconds = solved.Sub(ready).Seconds(), ready.Sub(began).Seconds()
	return answer, nil
}

// engine holds what Karpenter needs: a cluster, its state as Karpenter mirrors it, and a cloud.
type engine struct {
	ctx         context.Context
	kube        *memory
	mirror      *state.Cluster
	provider    cloudprovider.CloudProvider
	provisioner *provisioning.Provisioner
	recorder    events.Recorder
	waiting     []*corev1.Pod
}

func prepared(
	world World, instanceTypes []*cloudprovider.InstanceType, clk clock.Clock, controller string,
) (*engine, error) {
	ctx := options.ToContext(
		injection.WithControllerName(context.Background(), controller), settings(world.Settings))
	kube, waiting := cluster(world)
	var provider cloudprovider.CloudProvider = &catalogue{instanceTypes: instanceTypes}
	mirror := state.NewCluster(clk, kube, provider)
	if err := fill(ctx, mirror, world); err != nil {
		return nil, err
	}
	if len(world.NodeOverlays) > 0 {
		overlaid, err := overlays(ctx, kube, provider, mirror)
		if err != nil {
			return nil, fmt.Errorf("overlays: %w", err)
		}
		provider = overlaid
	}
	recorder := events.NewRecorder(&record.FakeRecorder{})
	provisioner := provisioning.NewProvisioner(kube, recorder, provider, mirror, clk, nil, nil)
	return &engine{ctx, kube, mirror, provider, provisioner, recorder, waiting}, nil
}

// overlays lets Karpenter evaluate the world's NodeOverlays, and returns the cloud with them applied.
func overlays(
	ctx context.Context, kube client.Client, provider cloudprovider.CloudProvider, mirror *state.Cluster,
) (cloudprovider.CloudProvider, error) {
	store := nodeoverlay.NewInstanceTypeStore()
	evaluation := nodeoverlay.NewController(clock.RealClock{}, kube, provider, store, mirror)
	if _, err := evaluation.Reconcile(ctx, reconcile.Request{}); err != nil {
		return nil, err
	}
	return overlay.Decorate(provider, kube, store), nil
}

// validated removes the pods that the provisioner ignores before it schedules.
func validated(
	ctx context.Context, provisioner *provisioning.Provisioner, waiting []*corev1.Pod,
) (valid []*corev1.Pod, refused map[string]error) {
	refused = map[string]error{}
	for _, pod := range waiting {
		if err := provisioner.Validate(ctx, pod); err != nil {
			refused[client.ObjectKeyFromObject(pod).String()] = err
			continue
		}
		valid = append(valid, pod)
	}
	return valid, refused
}

// solverOptions are those of the provisioner, with one worker for each of two cores.
func solverOptions(ctx context.Context) []scheduling.Options {
	chosen := options.FromContext(ctx)
	found := []scheduling.Options{
		scheduling.DisableReservedCapacityFallback,
		scheduling.NumConcurrentReconciles(2),
		scheduling.MinValuesPolicy(chosen.MinValuesPolicy),
	}
	if chosen.PreferencePolicy == options.PreferencePolicyIgnore {
		found = append(found, scheduling.IgnorePreferences)
	}
	return found
}

func settings(given map[string]string) *options.Options {
	chosen := test.Options()
	chosen.FeatureGates.NodeOverlay = true
	if policy, ok := given["PREFERENCE_POLICY"]; ok {
		chosen.PreferencePolicy = options.PreferencePolicy(policy)
	}
	gates := strings.ToLower(strings.ReplaceAll(given["FEATURE_GATES"], " ", ""))
	chosen.FeatureGates.SpotToSpotConsolidation = slices.Contains(
		strings.Split(gates, ","), "spottospotconsolidation=true")
	if policy, ok := given["MIN_VALUES_POLICY"]; ok {
		chosen.MinValuesPolicy = options.MinValuesPolicy(policy)
	}
	return chosen
}

// fill updates the mirrored state with every object, as its informers would.
func fill(ctx context.Context, mirror *state.Cluster, world World) error {
	for _, claim := range world.NodeClaims {
		mirror.UpdateNodeClaim(claim)
	}
	for _, node := range world.Nodes {
		if err := mirror.UpdateNode(ctx, node); err != nil {
			return fmt.Errorf("node %s: %w", node.Name, err)
		}
	}
	for _, pod := range world.Pods {
		if err := mirror.UpdatePod(ctx, pod); err != nil {
			return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	for _, daemonSet := range world.DaemonSets {
		if err := mirror.UpdateDaemonSet(ctx, daemonSet); err != nil {
			return fmt.Errorf("daemonset %s/%s: %w", daemonSet.Namespace, daemonSet.Name, err)
		}
	}
	return nil
}

func written(results scheduling.Results) *Answer {
	answer := &Answer{
		NewNodes:      []NewNode{},
		ExistingNodes: map[string][]string{},
		Unschedulable: map[string][]string{},
	}
	for _, claim := range results.NewNodeClaims {
		node := newNode(claim)
		answer.NewNodes = append(answer.NewNodes, node)
		answer.Cost += node.Price
	}
	for _, node := range results.ExistingNodes {
		if len(node.Pods) > 0 {
			answer.ExistingNodes[node.Name()] = names(node.Pods)
		}
	}
	for pod, err := range results.PodErrors {
		answer.Unschedulable[client.ObjectKeyFromObject(pod).String()] = []string{err.Error()}
	}
	return answer
}

func newNode(claim *scheduling.NodeClaim) NewNode {
	ordered := claim.InstanceTypeOptions.OrderByPrice(claim.Requirements)
	node := NewNode{NodePool: claim.NodePoolName, Pods: names(claim.Pods)}
	for _, instanceType := range ordered {
		node.InstanceTypes = append(node.InstanceTypes, instanceType.Name)
	}
	for _, requirement := range claim.Requirements.NodeSelectorRequirements() {
		node.Requirements = append(node.Requirements, corev1.NodeSelectorRequirement{
			Key: requirement.Key, Operator: requirement.Operator, Values: requirement.Values})
	}
	sort.Slice(node.Requirements, func(i, j int) bool {
		return node.Requirements[i].Key < node.Requirements[j].Key
	})
	if len(ordered) > 0 {
		offerings := ordered[0].Offerings.Available().Compatible(claim.Requirements)
		if len(offerings) > 0 {
			node.Price = offerings.Cheapest().Price
		}
	}
	return node
}

func names(pods []*corev1.Pod) []string {
	found := make([]string, 0, len(pods))
	for _, pod := range pods {
		found = append(found, client.ObjectKeyFromObject(pod).String())
	}
	sort.Strings(found)
	return found
}
