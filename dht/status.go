package dht

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"

	"cascadekv/dht/directory"
	"cascadekv/dht/fabric"
	"cascadekv/dht/ring"
)

// counters are a node's statistics since it started.
type counters struct {
	calls, unanswered       atomic.Uint64
	unlocated               atomic.Uint64
	lookups, negative       atomic.Uint64
	announced, handed       atomic.Uint64
	reads, readBytes, stale atomic.Uint64
	readErrors              atomic.Uint64
	served, servedBytes     atomic.Uint64
}

func (c *counters) read(bytes int, err error) {
	if err != nil {
		c.readErrors.Add(1)
		return
	}
	c.reads.Add(1)
	c.readBytes.Add(uint64(bytes))
}

// Stats is a snapshot of a node.
type Stats struct {
	Rank        fabric.Rank `json:"rank"`
	Incarnation uint64      `json:"incarnation"`
	Fabric      string      `json:"fabric"`
	Link        string      `json:"link,omitempty"` // how the fabric describes what is below it
	Ranks       int         `json:"ranks"`          // in the ring
	RingDigest  uint64      `json:"ring_digest"`    // equal on ranks that place alike
	Settling    bool        `json:"settling"`       // the ring changed lately
	Entries     int         `json:"entries"`        // names whose home is here
	Calls       uint64      `json:"calls"`          // messages to other ranks
	Unanswered  uint64      `json:"unanswered"`     // calls and reads that ended without an answer
	Unlocated   uint64      `json:"unlocated"`      // keys of look-ups of which no home answered
	Lookups     uint64      `json:"lookups"`        // keys asked for
	Negative    uint64      `json:"negative"`       // keys not asked for, since nobody had them just before
	Announced   uint64      `json:"announced"`      // statements that homes took in
	Handed      uint64      `json:"handed"`         // statements of others handed to new homes
	Reads       uint64      `json:"reads"`          // blocks read from other ranks
	ReadBytes   uint64      `json:"read_bytes"`
	ReadErrors  uint64      `json:"read_errors"`
	Stale       uint64      `json:"stale"`  // reads that found the block moved or gone
	Served      uint64      `json:"served"` // blocks other ranks read here
	ServedBytes uint64      `json:"served_bytes"`
}

// Stats returns a snapshot.
func (n *Node) Stats() Stats {
	v, c := n.view.Load(), &n.stats
	link := ""
	if f, ok := n.fab.(interface{ Link() string }); ok {
		link = f.Link()
	}
	return Stats{
		Link: link,
		Rank: n.self, Incarnation: n.o.Incarnation, Fabric: n.fab.Name(),
		Ranks: v.ring.Len(), RingDigest: v.ring.Digest(), Settling: v.former != nil, Entries: n.dir.Len(),
		Calls: c.calls.Load(), Unanswered: c.unanswered.Load(), Unlocated: c.unlocated.Load(), Lookups: c.lookups.Load(), Negative: c.negative.Load(),
		Announced: c.announced.Load(), Handed: c.handed.Load(),
		Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), ReadErrors: c.readErrors.Load(), Stale: c.stale.Load(),
		Served: c.served.Load(), ServedBytes: c.servedBytes.Load(),
	}
}

// RankStatus is one rank as this one sees it.
type RankStatus struct {
	Rank        fabric.Rank     `json:"rank"`
	Incarnation uint64          `json:"incarnation"`
	Host        string          `json:"host,omitempty"`
	Addr        string          `json:"addr,omitempty"`
	State       string          `json:"state"`            // "alive", "suspect", "gone"
	Share       float64         `json:"share"`            // of the ring
	Report      json.RawMessage `json:"report,omitempty"` // the rank's own description
	Error       string          `json:"error,omitempty"`  // why there is no report
}

// Ranks describes all members, by number, each with its own
// report, for which it is asked now.
func (n *Node) Ranks(ctx context.Context) []RankStatus {
	v := n.view.Load()
	share := map[fabric.Rank]float64{}
	for _, s := range v.ring.Shares() {
		share[s.Rank] = s.Fraction
	}
	var out []RankStatus
	for _, m := range v.members {
		out = append(out, RankStatus{
			Rank: m.Rank, Incarnation: m.Incarnation, Host: m.Host, Addr: m.Addr,
			State: m.State.String(), Share: share[m.Rank],
		})
	}
	slices.SortFunc(out, func(a, b RankStatus) int { return int(a.Rank) - int(b.Rank) })
	var wait sync.WaitGroup
	for i := range out {
		wait.Go(func() { n.ask(ctx, &out[i], v.state(out[i].Rank)) })
	}
	wait.Wait()
	return out
}

// report describes this rank: its store's report, and "peers".
func (n *Node) report() []byte {
	head, ok := bytes.CutSuffix(bytes.TrimSpace(n.local.Status()), []byte("}"))
	peers, err := json.Marshal(n.Stats())
	if !ok || err != nil {
		return []byte("{}")
	}
	out := slices.Clip(head)
	if len(head) > 1 {
		out = append(out, ',')
	}
	return append(append(append(out, `"peers":`...), peers...), '}')
}

// ask fills in a rank's report.
func (n *Node) ask(ctx context.Context, s *RankStatus, state fabric.State) {
	switch {
	case s.Rank == n.self:
		s.Report = n.report()
	case state != fabric.Gone:
		answer, err := n.call(ctx, s.Rank, kindStatus, nil)
		if err != nil {
			s.Error = err.Error()
			return
		}
		s.Report = answer
	}
	if len(s.Report) > 0 && !json.Valid(s.Report) {
		s.Report, s.Error = nil, "its report is no JSON"
	}
}

// Has reports whether a rank is one of the ring.
func (n *Node) Has(r fabric.Rank) bool { return n.view.Load().ring.Has(r) }

// IsFirstHome reports whether this rank is the first home of a key. As long as
// ranks agree on who is in the ring, one of them is.
func (n *Node) IsFirstHome(namespace, key string) bool {
	r := n.view.Load().ring
	return r.Homes(r.Partition(namespace, key))[0] == n.self
}

// Explain returns where a key lives and why.
func (n *Node) Explain(namespace, key string) ring.Explanation {
	return n.view.Load().ring.Explain(namespace, key)
}

// Fate returns what became of a name of which no rank has a copy. Only a home of it knows.
func (n *Node) Fate(namespace, key string) directory.Fate { return n.dir.Fate(namespace, key) }

// KeyPlace is what CASCADE.RING reports: where a key's entry lives, and where
// its block does as this rank sees it.
type KeyPlace struct {
	ring.Explanation
	Rank   fabric.Rank `json:"rank"`   // that was asked
	Stored bool        `json:"stored"` // on some rank
	ID     string      `json:"id,omitempty"`
	Tiers  []string    `json:"tiers,omitempty"`  // that would serve it on this rank, fastest first
	Copies []KeyCopy   `json:"copies,omitempty"` // on other ranks
}

// KeyCopy is a copy of a block on another rank.
type KeyCopy struct {
	Rank    fabric.Rank `json:"rank"`
	Memory  bool        `json:"memory"`
	Segment bool        `json:"segment"` // in the shared file system
}
