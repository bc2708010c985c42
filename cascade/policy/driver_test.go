package policy

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"
	"time"

	"cascadekv/internal/testing/tracetest"
)

// request is one line of a trace: a chain of block ids, head first.
type request struct {
	Timestamp int64    `json:"timestamp"` // milliseconds
	Blocks    []uint64 `json:"hash_ids"`
}

// readTrace reads a public trace, see tracetest.Public.
func readTrace(t *testing.T, name string) []request {
	t.Helper()
	path := tracetest.Public(t, name)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	var requests []request
	lines := bufio.NewScanner(unzip)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%s line %d: %v", path, len(requests)+1, err)
		}
		requests = append(requests, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return requests
}

// uniqueBlocks counts the distinct blocks of a trace.
func uniqueBlocks(requests []request) int {
	seen := map[uint64]bool{}
	for _, r := range requests {
		for _, b := range r.Blocks {
			seen[b] = true
		}
	}
	return len(seen)
}

// flatBlock is the size of the blocks of a flatTier.
const flatBlock = 256 << 10

// flatTier is one tier of blocks of one size that drives a policy as the store
// does: children hold their parents, and a request is a get and then a put.
type flatTier struct {
	t        *testing.T
	policy   Policy
	capacity int
	resident map[uint64]Node
	parent   map[Node]Node
	block    map[Node]uint64
	children map[Node]int
}

func newFlatTier(t *testing.T, name string, capacity int) *flatTier {
	t.Helper()
	return &flatTier{t: t, policy: must(t, name, int64(capacity)*flatBlock), capacity: capacity, resident: map[uint64]Node{},
		parent: map[Node]Node{}, block: map[Node]uint64{}, children: map[Node]int{}}
}

// hitRatio replays a trace and returns the share of its blocks that were
// found, counting of each request the longest resident prefix.
func (f *flatTier) hitRatio(requests []request) float64 {
	f.t.Helper()
	var hits, blocks int
	for _, r := range requests {
		hits += f.serve(r)
		blocks += len(r.Blocks)
	}
	return float64(hits) / float64(blocks)
}

// serve gets what is resident of a request, puts the rest as far as it fits,
// and returns the number of hits.
func (f *flatTier) serve(r request) (hits int) {
	f.t.Helper()
	now := time.Duration(r.Timestamp) * time.Millisecond
	asked := Request{Now: now, Hits: len(r.Blocks)}
	for i, b := range r.Blocks {
		n, ok := f.resident[b]
		switch {
		case !ok:
			n = NoNode
		case hits < i:
			f.t.Fatalf("block %d is resident without its parent", b)
		default:
			hits++
			f.policy.Hold(n)
		}
		asked.Chain = append(asked.Chain, Ref{Fingerprint: b, Size: flatBlock, Node: n})
	}
	f.policy.Access(&asked)
	chain := asked.Chain[:hits]
	for _, b := range r.Blocks[hits:] {
		m := Meta{Fingerprint: b, Size: flatBlock, Depth: uint32(len(chain)), Refs: 1, Elsewhere: true}
		if len(f.resident) >= f.capacity && !f.policy.Admit(now, m) || !f.makeRoom() {
			break
		}
		chain = append(chain, Ref{Fingerprint: b, Size: flatBlock, Node: f.put(now, m, chain)})
	}
	f.policy.Access(&Request{Now: now, Chain: chain[hits:]})
	for _, ref := range chain {
		f.policy.Release(ref.Node)
	}
	return hits
}

// put inserts a block behind chain, with a hold.
func (f *flatTier) put(now time.Duration, m Meta, chain []Ref) Node {
	n := f.policy.Insert(now, m)
	f.policy.Hold(n)
	f.resident[m.Fingerprint], f.block[n] = n, m.Fingerprint
	if len(chain) > 0 {
		f.parent[n] = chain[len(chain)-1].Node
		f.children[f.parent[n]]++
		f.policy.Hold(f.parent[n])
	}
	return n
}

// makeRoom evicts until one more block fits; false when all that is resident
// is held.
func (f *flatTier) makeRoom() bool {
	f.t.Helper()
	for len(f.resident) >= f.capacity {
		n, ok := f.policy.Victim()
		if !ok {
			return false
		}
		if f.children[n] > 0 {
			f.t.Fatalf("victim %d has %d resident children", n, f.children[n])
		}
		f.policy.Remove(n, true)
		delete(f.resident, f.block[n])
		delete(f.block, n)
		if parent, ok := f.parent[n]; ok {
			delete(f.parent, n)
			f.children[parent]--
			f.policy.Release(parent)
		}
	}
	return true
}
