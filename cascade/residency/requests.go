package residency

import (
	"math"
	"time"

	"cascadekv/cascade/estimate"
	"cascadekv/cascade/inference"
	"cascadekv/cascade/names"
	"cascadekv/cascade/policy"
	"cascadekv/internal/block"
)

// Requests is one request as the policies see it: its blocks in the order of each
// level, head of the chain first. Guarded by State.Mu.
type Requests struct {
	state    *State
	chains   [maxLevels][]policy.Ref
	gathered [maxLevels][]policy.Ref // of LookedLocked
	lookups  lookups
	request  policy.Request // of Pass, so that none is made for each call

	orders inference.Orders // of all requests; it has a lock of its own

	// CatchUpLocked takes in what clients looked up and read that ask nobody; nil: there are none.
	CatchUpLocked func()

	Prefills   estimate.Prefills // how fast engines compute what was missing; not guarded
	Prefetched Prefetched        // what was brought here because it was looked up
}

// Hint is what a client declares of how a chain will be used. Nothing needs it, and a wrong one costs little.
type Hint struct {
	Shared int           // leading keys of a prompt that many conversations share
	Due    time.Duration // until the chain is asked for next; 0: not known
	Soon   bool          // it is asked for at once: Due does not count
}

// AddLocked adds b to the request that PassLocked ends.
func (q *Requests) AddLocked(b *Block) {
	q.state.Mu.AssertHeld()
	if b.Asked < math.MaxUint8 {
		b.Asked++
	}
	q.MentionLocked(b)
}

// MentionLocked adds b to the request that HintLocked ends: nobody asks for it.
func (q *Requests) MentionLocked(b *Block) {
	q.state.Mu.AssertHeld()
	ref := policy.Ref{Fingerprint: q.FingerprintLocked(b), Size: b.Info.Size}
	for i, m := range q.state.Levels {
		if m.Policy != nil {
			ref.Node = m.nodeOf(b)
			q.chains[i] = append(q.chains[i], ref)
		}
	}
}

// AddMissLocked adds a block that this rank does not have to the request, by its fingerprint.
func (q *Requests) AddMissLocked(print uint64) {
	q.state.Mu.AssertHeld()
	ref := policy.Ref{Fingerprint: print, Node: policy.NoNode}
	for i, m := range q.state.Levels {
		if m.Policy != nil {
			q.chains[i] = append(q.chains[i], ref)
		}
	}
}

// PassLocked passes the request to the policies: asked reports whether its blocks
// were asked for, and not stored.
func (q *Requests) PassLocked(asked bool) { q.passLocked(Hint{}, asked) }

// HintLocked passes the policies what is declared of the blocks.
func (q *Requests) HintLocked(h Hint) { q.passLocked(h, false) }

func (q *Requests) passLocked(h Hint, asked bool) {
	q.state.Mu.AssertHeld()
	r := policy.Request{Now: q.state.Clock(), Shared: h.Shared, Due: h.Due}
	if h.Soon {
		r.Due = 1
	}
	for i, chain := range q.chains {
		if len(chain) > 0 {
			r.Chain = chain
			q.pass(q.state.Levels[i].Policy, r, asked)
			q.chains[i] = chain[:0]
		}
	}
}

// Pass passes a chain to one policy.
func (q *Requests) Pass(p policy.Policy, chain []policy.Ref, asked bool) {
	q.pass(p, policy.Request{Now: q.state.Clock(), Chain: chain}, asked)
}

func (q *Requests) pass(p policy.Policy, r policy.Request, asked bool) {
	if q.request = r; asked {
		q.request.Hits = len(r.Chain)
	}
	p.Access(&q.request)
}

// FingerprintLocked is that of the first name that b has had here.
func (q *Requests) FingerprintLocked(b *Block) uint64 {
	if all := b.Names(); b.Fingerprint == 0 && len(all) > 0 {
		b.Fingerprint = block.Fingerprint(all[0].Namespace(), all[0].Key())
	}
	return b.Fingerprint
}

// Stored is StoredLocked for those who do not hold the mutex.
func (q *Requests) Stored(stored ...*names.Name) {
	if len(stored) == 0 {
		return
	}
	q.state.Mu.Lock()
	defer q.state.Mu.Unlock()
	q.StoredLocked(Hint{}, stored...)
}

// StoredLocked passes the policies a request that stored a chain, or a piece of
// one, head first, and what it declares of it. What comes before the piece is not touched, or each put would
// cost as much as its chain is long: those blocks can not leave before the new
// ones, and are the next to leave after them.
func (q *Requests) StoredLocked(h Hint, stored ...*names.Name) {
	for _, n := range stored {
		if n.Block() != nil {
			if q.Prefills.Awaits() {
				q.Prefills.Stored(q.state.Age(q.state.Now()), block.Fingerprint(n.Namespace(), n.Key()))
			}
			q.AddLocked(BlockOf(n))
			promptLocked(n)
		}
	}
	q.passLocked(h, false)
}

// promptLocked counts what comes before a block of a prompt as part of that prompt, whoever
// generated it. Without it the block is of no use, and an engine that still has it in its own
// memory does not ask for it.
func promptLocked(n *names.Name) {
	if BlockOf(n).Generated {
		return
	}
	for p := n.Parent(); p != nil && p.Block() != nil && BlockOf(p).Generated; p = p.Parent() {
		BlockOf(p).Generated = false
	}
}
