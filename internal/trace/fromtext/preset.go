package fromtext

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// preset describes a benchmark of long documents: tasks, each with documents of
// its own about which some questions are asked, one request each.
//
// Tasks, Low, High and the hits are the figures of the Tutti paper (arXiv
// 2605.03375, section 4, "Workloads" and Table 1). The paper gives no numbers of
// questions and no distribution of lengths. Here each task has its own part of
// the range of lengths, parts are equal on a logarithmic scale, and lengths are
// uniform within one. The questions of a document and the documents under way
// are so many that a cache hits what the paper's tiers do: one of all blocks
// what the SSD tier does, and LRU in 2 Mi tokens what the DRAM tier does, which
// had 256 GB at 128 KiB a token of Llama3-8B.
type preset struct {
	Tasks     int
	Low, High int     // tokens of a document
	SSD, DRAM float64 // hits, as shares of tokens

	Documents                   int // of a task under way at a time
	FewQuestions, MostQuestions int // of a document, uniform
	QuestionTokens              int // mean, uniform from half to one and a half
	AnswerTokens                int // likewise
}

// presets by name. LooGLE's documents are "significantly" longer than LEval's on
// average and many exceed 100k tokens: from 50k, half of them do.
var presets = map[string]preset{
	"leval": {Tasks: 20, Low: 3_000, High: 200_000, SSD: 0.84, DRAM: 0.53,
		Documents: 3, FewQuestions: 5, MostQuestions: 8, QuestionTokens: 100, AnswerTokens: 100},
	"loogle": {Tasks: 4, Low: 50_000, High: 200_000, SSD: 0.86, DRAM: 0.24,
		Documents: 16, FewQuestions: 6, MostQuestions: 9, QuestionTokens: 100, AnswerTokens: 150},
}

// Presets lists the names that NewPreset takes.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// NewPreset returns a source of a benchmark's requests: the same ones for the
// same seed on any machine. Each document is a session; o.Active must be 0. The
// error matches ErrBadOptions.
func NewPreset(name string, o Options) (*Source, error) {
	p, ok := presets[name]
	if !ok {
		return nil, fmt.Errorf("%w: preset %q is none of %v", ErrBadOptions, name, Presets())
	}
	if o.Active != 0 {
		return nil, fmt.Errorf("%w: a preset has its own number of sessions, Active must be 0", ErrBadOptions)
	}
	o.tasks, o.Active = p.Tasks, p.Tasks*p.Documents
	if o.Limit == 0 {
		o.Limit = presetRequests
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	s := newSource(o)
	s.sessions = p.documents(name, &s.o)
	return s, nil
}

// documents returns a maker of documents, endless for each task.
func (p preset) documents(name string, o *Options) func(task int) (*session, error) {
	rngs, made := make([]*rand.Rand, p.Tasks), make([]int, p.Tasks)
	for task := range rngs {
		rngs[task] = rand.New(rand.NewPCG(o.Seed, uint64(task)+2))
	}
	return func(task int) (*session, error) {
		rng := rngs[task]
		made[task]++
		d := &session{name: fmt.Sprintf("%s-%02d-%d", name, task, made[task])}
		low, high := p.part(task), p.part(task+1)
		tokens := low + rng.IntN(high-low)
		for i := range tokens / o.BlockTokens {
			d.blocks = append(d.blocks, place(o.Seed, d.name, i, 0))
		}
		for question := range p.FewQuestions + rng.IntN(p.MostQuestions-p.FewQuestions+1) {
			d.ask(o, tokens, tokens+around(rng, p.QuestionTokens), around(rng, p.AnswerTokens), question+1)
		}
		return d, nil
	}
}

// part is where a task's part of the range of lengths begins: all have the same
// share of it on a logarithmic scale. Rounding hides the last bits, in which
// machines may differ.
func (p preset) part(task int) int {
	share := float64(task) / float64(p.Tasks)
	return int(math.Round(float64(p.Low)*math.Pow(float64(p.High)/float64(p.Low), share)/10)) * 10
}

// around returns a number from half to one and a half of mean.
func around(rng *rand.Rand, mean int) int { return mean/2 + rng.IntN(mean+1) }

// ask adds a request with the document and a question behind it. The document's
// last block, if it is not whole, has the question's text too, so what is behind
// the whole blocks belongs to the question.
func (s *session) ask(o *Options, document, tokens, output, question int) {
	t := turn{tokens: tokens, output: output, whole: document / o.BlockTokens}
	for i := t.whole; i < tokens/o.BlockTokens; i++ {
		t.own = append(t.own, place(o.Seed, s.name, i, question))
	}
	if t.partial = tokens%o.BlockTokens != 0; t.partial {
		t.last = place(o.Seed, s.name, tokens/o.BlockTokens, question)
	}
	s.turns = append(s.turns, t)
}

// place stands for a block of a document, or of one of its questions, counted
// from 1.
func place(seed uint64, document string, block, question int) (d digest) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %d %d", seed, document, block, question))
	copy(d[:], sum[:])
	return d
}
