// Command promql evaluates PromQL on scrapes of a metrics page, as Prometheus would.
//
// It reads {"scrapes": [{"seconds", "text"}], "queries": [text], "rules": text} from stdin. It
// writes for each query an error, the number of series in its result, and how many series each of
// its selectors finds; and the faults of the rules file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"math"
	"os"
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

type question struct {
	Scrapes []struct {
		Seconds float64 `json:"seconds"`
		Text    string  `json:"text"`
	} `json:"scrapes"`
	Labels  map[string]string `json:"labels"`
	Queries []string          `json:"queries"`
	Rules   string            `json:"rules"`
}

type answer struct {
	Error     string         `json:"error"`
	Series    int            `json:"series"`
	Selectors map[string]int `json:"selectors"`
}

type report struct {
	Queries []answer `json:"queries"`
	Rules   []string `json:"rules"`
}

type sample struct {
	t int64
	v float64
}

func (s sample) ST() int64                     { return 0 }
func (s sample) T() int64                      { return s.t }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// memory holds all series of the scrapes.
type memory struct{ byLabels map[string]*series }

func (m *memory) add(set labels.Labels, t int64, v float64) {
	key := set.String()
	found, ok := m.byLabels[key]
	if !ok {
		found = &series{labels: set}
		m.byLabels[key] = found
	}
	found.samples = append(found.samples, sample{t, v})
}

func (m *memory) find(matchers []*labels.Matcher) []*series {
	var found []*series
	for _, each := range m.byLabels {
		matches := true
		for _, matcher := range matchers {
			matches = matches && matcher.Matches(each.labels.Get(matcher.Name))
		}
		if matches {
			found = append(found, each)
		}
	}
	sort.Slice(found, func(i, j int) bool {
		return labels.Compare(found[i].labels, found[j].labels) < 0
	})
	return found
}

func (m *memory) scrape(text string, t int64, extra map[string]string) error {
	p, err := textparse.New([]byte(text), "text/plain", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, v := p.Series()
		var set labels.Labels
		p.Labels(&set)
		builder := labels.NewBuilder(set)
		for name, value := range extra {
			builder.Set(name, value)
		}
		m.add(builder.Labels(), t, v)
	}
}

// Querier returns the memory itself: it has no time range of its own.
func (m *memory) Querier(_, _ int64) (storage.Querier, error) { return querier{m}, nil }

type querier struct{ memory *memory }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return &set{found: q.memory.find(matchers), at: -1}
}

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (querier) Close() error { return nil }

type set struct {
	found []*series
	at    int
}

func (s *set) Next() bool { s.at++; return s.at < len(s.found) }
func (s *set) At() storage.Series {
	return storage.NewListSeries(s.found[s.at].labels, s.found[s.at].samples)
}
func (*set) Err() error                        { return nil }
func (*set) Warnings() annotations.Annotations { return nil }

func evaluate(engine *promql.Engine, data *memory, query string, at time.Time) answer {
	found := answer{Selectors: map[string]int{}}
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		found.Error = err.Error()
		return found
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			bare := parser.VectorSelector{Name: selector.Name, LabelMatchers: selector.LabelMatchers}
			found.Selectors[bare.String()] = len(data.find(selector.LabelMatchers))
		}
		return nil
	})
	prepared, err := engine.NewInstantQuery(context.Background(), data, nil, query, at)
	if err != nil {
		found.Error = err.Error()
		return found
	}
	defer prepared.Close()
	result := prepared.Exec(context.Background())
	switch {
	case result.Err != nil:
		found.Error = result.Err.Error()
	default:
		if vector, err := result.Vector(); err == nil {
			found.Series = len(vector)
		} else {
			found.Series = 1
		}
	}
	return found
}

func main() {
	log.SetFlags(0)
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		log.Fatalf("stdin: %v", err)
	}
	data := &memory{byLabels: map[string]*series{}}
	last := 0.0
	for _, scrape := range asked.Scrapes {
		if err := data.scrape(scrape.Text, int64(scrape.Seconds*1000), asked.Labels); err != nil {
			log.Fatalf("scrape at %v s: %v", scrape.Seconds, err)
		}
		last = math.Max(last, scrape.Seconds)
	}
	engine := promql.NewEngine(promql.EngineOpts{
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		MaxSamples: 50_000_000,
		Timeout:    time.Minute,
	})
	written := report{Queries: []answer{}, Rules: []string{}}
	for _, query := range asked.Queries {
		at := time.UnixMilli(int64(last * 1000))
		written.Queries = append(written.Queries, evaluate(engine, data, query, at))
	}
	if asked.Rules != "" {
		if _, faults := rulefmt.Parse([]byte(asked.Rules), false, model.UTF8Validation,
			parser.NewParser(parser.Options{}), slog.New(slog.NewTextHandler(io.Discard, nil))); len(faults) > 0 {
			for _, fault := range faults {
				written.Rules = append(written.Rules, fault.Error())
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(written); err != nil {
		log.Fatal(err)
	}
}
