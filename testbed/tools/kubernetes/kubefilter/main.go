// Command kubefilter answers where kube-scheduler's own PreFilter and Filter plugins, those of the default
// profile, admit the pods of recorded worlds. It answers one JSON line with one JSON line:
//
//	{"world": {...}, "plan": {"nodes": [...], "csiNodes": [...], "pods": [...], "bind": {"default/a": "n1"}},
//	 "alone": [{"nodes": [...], "csiNodes": [...], "pods": [...]}]}
//	{"refused": {"default/a": "NodeResourcesFit: Insufficient cpu"},
//	 "verdicts": {"default/b": {"n1": "", "n2": "TaintToleration: ..."}}}
//
// `plan` and `alone` are optional. The plan's nodes and running pods are added to the world's, and the pods in
// `bind` are bound to their planned nodes in an order in which the plugins admit them; `refused` has the pods
// for which no order is found. `verdicts` has every pending pod that the plan does not bind: by node, why it is
// refused, or an empty text. Each world of `alone` is added by itself, and its nodes are part of the verdicts.
//
// The API server's own code reads every pod first: it sets defaults and merges `matchLabelKeys` into selectors.
// A question {"create": [...]} has pods as their authors write them, and the answer has them as the API server
// stores them: {"pods": [...]}, or {"invalid": {"default/a": "..."}} for those that it refuses.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

type question struct {
	World  world     `json:"world"`
	Plan   plan      `json:"plan"`
	Alone  []world   `json:"alone"`
	Create []*v1.Pod `json:"create"`
}

type plan struct {
	world
	Bind map[string]string `json:"bind"`
}

type answer struct {
	Refused  map[string]string            `json:"refused,omitempty"`
	Verdicts map[string]map[string]string `json:"verdicts,omitempty"`
	Pods     []*v1.Pod                    `json:"pods,omitempty"`
	Invalid  map[string]string            `json:"invalid,omitempty"`
	Error    string                       `json:"error,omitempty"`
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	flags := flag.NewFlagSet("kubefilter", flag.ExitOnError)
	klog.InitFlags(flags)
	check(flags.Parse(append([]string{"-logtostderr=false", "-alsologtostderr=false", "-stderrthreshold=FATAL"}, os.Args[1:]...)))
	metrics.Register()
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			check(answers.Encode(answered(line)))
		}
		if err != nil {
			return
		}
	}
}

// answered answers one question; a panic of a plugin, or an unreadable world, is an error of this world alone.
func answered(line []byte) (result answer) {
	defer func() {
		if why := recover(); why != nil {
			result = answer{Error: fmt.Sprintf("%v\n%s", why, debug.Stack())}
		}
	}()
	if pods := parsed(line).Create; pods != nil {
		return allCreated(pods)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, refused := replay(func() *scheduler { return newScheduler(ctx, parsed(line)) }, parsed(line).Plan.Bind)
	result.Refused = refused
	result.Verdicts = map[string]map[string]string{}
	s.judge(result.Verdicts, s.snapshot.names)
	for _, alone := range parsed(line).Alone {
		s.judge(result.Verdicts, s.add(&alone))
		s.remove(&alone)
	}
	return result
}

// parsed returns a copy of the question's objects, which the scheduler may change.
func parsed(line []byte) *question {
	var q question
	check(json.Unmarshal(line, &q))
	return &q
}

func allCreated(pods []*v1.Pod) answer {
	result := answer{Invalid: map[string]string{}}
	for _, pod := range pods {
		stored, refused := created(pod)
		if refused != nil {
			result.Invalid[key(pod)] = refused.Error()
		}
		result.Pods = append(result.Pods, stored)
	}
	return result
}
