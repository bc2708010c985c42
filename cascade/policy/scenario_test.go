package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Scenarios are stories of one tier in testdata/*.txt. Lines:
//
//	policy NAME CAPACITY         start an empty policy
//	insert B [parent=P] [size=N] [prefix] [refs=N]
//	                             P gets a hold until B leaves
//	update B [prefix] [refs=N]
//	access B... [hits=N]
//	hold B | release B | remove B
//	victim                       print who leaves next
//	drain                        remove victims, print them in order
//	> text                       what the line above must have printed
//
// Empty lines and lines that start with # are for the reader. An expectation
// is changed only by someone who can say why the order is a better one.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := runScenario(string(text)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		})
	}
}

// A runner that accepted everything would prove nothing.
func TestScenarioRunnerCanFail(t *testing.T) {
	for name, text := range map[string]string{
		"wrong expectation":    "policy lru 0\ninsert a\nvictim\n> b",
		"missing expectation":  "policy lru 0\ninsert a\nvictim",
		"needless expectation": "policy lru 0\ninsert a\n> a",
		"expects nothing":      "policy lru 0",
		"unknown verb":         "policy lru 0\nevict\n> none",
		"unknown block":        "policy lru 0\nhold a\nvictim\n> none",
		"unknown policy":       "policy mru 0\nvictim\n> none",
		"bad number":           "policy lru 0\ninsert a size=big\nvictim\n> a",
	} {
		if err := runScenario(text); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// stage is the state of one scenario.
type stage struct {
	policy Policy
	nodes  map[string]Node
	names  map[Node]string
	parent map[string]string
	meta   map[string]Meta
}

func runScenario(text string) error {
	var s stage
	var printed string
	var waiting bool
	checked := 0
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		want, expectation := strings.CutPrefix(line, "> ")
		switch {
		case expectation != waiting:
			return fmt.Errorf("line %d: a line that prints and its expectation come in pairs", i+1)
		case expectation && want != printed:
			return fmt.Errorf("line %d: printed %q, want %q", i+1, printed, want)
		case expectation:
			waiting = false
			checked++
			continue
		}
		out, err := s.run(strings.Fields(line))
		if err != nil {
			return fmt.Errorf("line %d: %s: %w", i+1, line, err)
		}
		printed, waiting = out, out != ""
	}
	if waiting || checked == 0 {
		return fmt.Errorf("%d expectations, last output %q", checked, printed)
	}
	return nil
}

// run executes one line and returns what it prints.
func (s *stage) run(words []string) (string, error) {
	verb, blocks, options := words[0], []string{}, map[string]string{}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok || w == "prefix" && verb != "policy" {
			options[k] = v
		} else {
			blocks = append(blocks, w)
		}
	}
	if verb == "policy" {
		return "", s.start(blocks)
	}
	var chain []Node
	for _, b := range blocks {
		n, ok := s.nodes[b]
		if !ok && verb != "insert" {
			return "", fmt.Errorf("no block %q", b)
		}
		chain = append(chain, n)
	}
	switch {
	case verb == "drain" && len(blocks) == 0:
		return s.drain(), nil
	case verb == "victim" && len(blocks) == 0:
		return s.victim(), nil
	case verb == "access":
		hits, err := strconv.Atoi(options["hits"])
		if options["hits"] != "" && err != nil {
			return "", err
		}
		s.policy.Access(requestFor(0, hits, chain...))
		return "", nil
	case len(blocks) != 1:
		return "", fmt.Errorf("%q cannot be done to %d blocks", verb, len(blocks))
	}
	return "", s.change(verb, blocks[0], options)
}

func (s *stage) start(words []string) error {
	if len(words) != 2 {
		return fmt.Errorf("want a name and a capacity")
	}
	capacity, err := strconv.ParseInt(words[1], 10, 64)
	if err != nil {
		return err
	}
	p, err := New(words[0], capacity)
	*s = stage{policy: p, nodes: map[string]Node{}, names: map[Node]string{},
		parent: map[string]string{}, meta: map[string]Meta{}}
	return err
}

// change does verb to one block.
func (s *stage) change(verb, block string, options map[string]string) error {
	n := s.nodes[block]
	switch verb {
	case "insert", "update":
		m, err := parseMeta(s.meta[block], options)
		if err != nil {
			return err
		}
		s.meta[block] = m
		if verb == "update" {
			s.policy.Update(n, m)
			return nil
		}
		n = s.policy.Insert(time.Duration(0), m)
		s.nodes[block], s.names[n] = n, block
		if parent, ok := options["parent"]; ok {
			s.parent[block] = parent
			s.policy.Hold(s.nodes[parent])
		}
	case "hold":
		s.policy.Hold(n)
	case "release":
		s.policy.Release(n)
	case "remove":
		s.remove(block)
	default:
		return fmt.Errorf("unknown verb")
	}
	return nil
}

func (s *stage) remove(block string) {
	s.policy.Remove(s.nodes[block], true)
	delete(s.nodes, block)
	if parent, ok := s.parent[block]; ok {
		delete(s.parent, block)
		s.policy.Release(s.nodes[parent])
	}
}

func (s *stage) victim() string {
	n, ok := s.policy.Victim()
	if !ok {
		return "none"
	}
	return s.names[n]
}

func (s *stage) drain() string {
	var order []string
	for {
		block := s.victim()
		if block == "none" {
			return strings.Join(append(order, fmt.Sprintf("(%d stay)", s.policy.Len())), " ")
		}
		order = append(order, block)
		s.remove(block)
	}
}

// parseMeta reads the options of a line over what is known of the block.
func parseMeta(m Meta, options map[string]string) (Meta, error) {
	if m.Size == 0 {
		m.Size, m.Refs = 1, 1
	}
	for k, v := range options {
		n, err := strconv.Atoi(v)
		switch {
		case k == "prefix":
			m.Prefix = true
		case k == "parent":
		case err != nil:
			return m, err
		case k == "size":
			m.Size = int64(n)
		case k == "refs":
			m.Refs = n
		}
	}
	return m, nil
}
