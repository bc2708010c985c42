package record

import (
	"slices"

	"cascadekv/cascade/traffic"
)

// Times between commands of one request, in milliseconds; docs/traces.md has why.
const (
	window  = 10_000 // from a look-up to a load, or from either to a put
	pieces  = 2_000  // between loads, and between puts
	repeats = 200    // between look-ups, by one connection
	singles = 10     // between commands of one key each, by one connection, where no chain is known
	oldest  = 10 * window
)

const (
	maxBlocks  = 1 << 17 // of a request: some 2.7 MiB of a line
	maxSingles = 1 << 12 // keys that are taken for a chain for no other reason than that they came in a row
	maxOpen    = 1 << 14 // requests that may grow
	maxNear    = 64      // of these that are looked at, of those with one key
	maxKeys    = 1 << 20 // of all these
)

// Request is what an engine asked for and put together: a chain of blocks.
type Request struct {
	Began     int64 // when its first command came, in milliseconds since 1970
	Namespace string
	Keys      []uint64 // fingerprints of the whole chain, head first
	Headless  bool     // the chain began before the recording, and its head is not known
}

// Merger puts commands together to requests. It is not safe for concurrent use.
type Merger struct {
	emit   func(*Request)
	links  links
	open   []*growing // in the order in which they began
	at     map[place][]*growing
	latest map[uint64]*growing // by connection
	keys   int                 // of all open
	cut    int
}

// growing is a request that may get more commands.
type growing struct {
	Request
	traffic.Sender // of the first command
	last           int64
	kind           traffic.Kind // of the last command
	single         bool         // all commands had one key, of no known chain
	done           []traffic.Kind
	index          map[uint64]int // of keys
}

// place is a key as one engine uses it.
type place struct{ engine, key uint64 }

// NewMerger returns a Merger that calls emit for each request, in the order in which they
// began. The requests are the callee's.
func NewMerger(emit func(*Request)) *Merger {
	return &Merger{emit: emit, at: map[place][]*growing{}, latest: map[uint64]*growing{}}
}

// Cut returns how many requests were ended early because too many were under way, or because
// they had too many blocks.
func (m *Merger) Cut() int { return m.cut }

// Add takes a command in, and ends requests that can get no more by its time.
func (m *Merger) Add(c *traffic.Command) {
	m.Advance(c.At)
	keys := unique(c.Keys)
	parent := c.Parent
	if c.Kind == traffic.Put && !c.Chained { // they may be of several chains
		for i := 1; i < len(keys); i++ {
			if p, known := m.links.parent(keys[i]); known && p != keys[i-1] {
				m.run(c, parent, keys[:i])
				parent, keys, i = p, keys[i:], 0
			}
		}
	}
	m.run(c, parent, keys)
	for len(m.open) > maxOpen || m.keys > maxKeys {
		m.cut++
		m.end()
	}
}

// unique is keys without those that came before.
func unique(keys []uint64) []uint64 {
	seen, kept := make(map[uint64]struct{}, len(keys)), keys[:0:0]
	for _, k := range keys {
		if _, again := seen[k]; !again {
			seen[k] = struct{}{}
			kept = append(kept, k)
		}
	}
	return kept
}

// Advance ends requests that can get no more at that time, in milliseconds since 1970.
func (m *Merger) Advance(now int64) {
	for len(m.open) > 0 {
		r := m.open[0]
		patience := int64(window)
		if r.kind == traffic.Put {
			patience = pieces
		}
		if now-r.last <= patience && now-r.Began <= oldest {
			return
		}
		m.end()
	}
}

// Flush ends all requests.
func (m *Merger) Flush() {
	for len(m.open) > 0 {
		m.end()
	}
}

// end emits the request that began first.
func (m *Merger) end() {
	r := m.open[0]
	m.open[0] = nil
	m.open = m.open[1:]
	m.release(r)
	m.emit(&r.Request)
}

// release takes a request out of all but the list of open ones.
func (m *Merger) release(r *growing) {
	m.keys -= len(r.Keys)
	for _, k := range r.Keys {
		m.forget(place{r.Engine, k}, r)
	}
	if m.latest[r.Conn] == r {
		delete(m.latest, r.Conn)
	}
}

func (m *Merger) forget(p place, r *growing) {
	all := m.at[p]
	for i, x := range all { // it is the first, as a rule
		if x == r {
			copy(all[i:], all[i+1:])
			all[len(all)-1] = nil
			all = all[:len(all)-1]
			break
		}
	}
	if len(all) == 0 {
		delete(m.at, p)
		return
	}
	m.at[p] = all
}

// run takes in keys of a command that are one chain, at least one.
func (m *Merger) run(c *traffic.Command, parent uint64, keys []uint64) {
	if len(keys) == 0 {
		return
	}
	if parent == 0 {
		parent, _ = m.links.parent(keys[0])
	}
	single := parent == 0 && len(keys) == 1 && !c.Chained
	r, offset := m.find(c, parent, keys)
	switch {
	case r == nil && single:
		r, offset = m.inRow(c)
	case r != nil && offset == 0 && parent != 0:
		r, offset = m.follow(r, c, parent, keys)
	}
	if r == nil {
		r, offset = m.begin(c, parent)
		r.single = single
	}
	m.learn(parent, keys)
	m.extend(r, c, offset, keys)
	r.single = r.single && single
	r.last, r.kind = max(r.last, c.At), c.Kind
	delete(m.latest, c.Conn)
	if r.single && r.Conn == c.Conn {
		m.latest[c.Conn] = r
	}
}

func (m *Merger) learn(parent uint64, keys []uint64) {
	for _, k := range keys {
		m.links.learn(k, parent)
		parent = k
	}
}

// find returns the request that a run belongs to, nil if there is none, and where in its
// chain the run begins. Of several, one of the same connection comes first, then the one that
// was used last.
func (m *Merger) find(c *traffic.Command, parent uint64, keys []uint64) (best *growing, offset int) {
	for _, k := range [...]uint64{keys[len(keys)-1], keys[0], parent} {
		for _, r := range m.near(place{c.Engine, k}) {
			at, fits := r.fits(c, parent, keys)
			switch {
			case !fits:
			case best == nil, r.Conn == c.Conn && best.Conn != c.Conn, (r.Conn == c.Conn) == (best.Conn == c.Conn) && r.last >= best.last:
				best, offset = r, at
			}
		}
		if best != nil {
			return best, offset
		}
	}
	return nil, 0
}

// near returns the requests that have a key and began last: some hundreds under way may share
// a prompt's head.
func (m *Merger) near(p place) []*growing {
	all := m.at[p]
	return all[max(0, len(all)-maxNear):]
}

// fits reports whether a run may be part of r, and where in its chain it begins: commands of
// a request come in the order look-up, load, put; what was loaded or put is not again; and
// all of its keys are one chain.
func (r *growing) fits(c *traffic.Command, parent uint64, keys []uint64) (offset int, fits bool) {
	if c.Kind < r.kind || c.At-r.last > r.patience(c.Kind) || c.Kind == traffic.Looked && c.Conn != r.Conn {
		return 0, false
	}
	offset, fits = r.offset(parent, keys)
	if !fits || c.Kind == traffic.Looked && offset+len(keys) > len(r.Keys) && offset < len(r.Keys) {
		return 0, false // a longer prompt is another request
	}
	for i, k := range keys {
		at, here := r.index[k]
		switch {
		case here && at != offset+i, !here && offset+i >= 0 && offset+i < len(r.Keys):
			return 0, false
		case here && c.Kind != traffic.Looked && r.done[at] >= c.Kind:
			return 0, false
		}
	}
	return offset, true
}

// patience is how long after its last command r may get one of a kind.
func (r *growing) patience(kind traffic.Kind) int64 {
	switch {
	case kind != r.kind:
		return window
	case kind == traffic.Looked:
		return repeats
	}
	return pieces
}

// offset is where in the chain of r a run begins.
func (r *growing) offset(parent uint64, keys []uint64) (offset int, ok bool) {
	if at, ok := r.index[keys[0]]; ok {
		return at, true
	}
	if at, ok := r.index[keys[len(keys)-1]]; ok {
		return at - len(keys) + 1, true
	}
	at, ok := r.index[parent]
	return at + 1, ok && parent != 0
}

// inRow returns the request that a key of no known chain belongs to because it came right
// behind one that the connection used in the same way.
func (m *Merger) inRow(c *traffic.Command) (r *growing, offset int) {
	r = m.latest[c.Conn]
	if r == nil || !r.single || r.Namespace != c.Namespace || r.kind != c.Kind || c.At-r.last > singles || len(r.Keys) >= maxSingles {
		return nil, 0
	}
	if _, again := r.index[c.Keys[0]]; again {
		return nil, 0
	}
	return r, len(r.Keys)
}

// begin returns a new request that has what is known to come before parent, and parent.
func (m *Merger) begin(c *traffic.Command, parent uint64) (r *growing, offset int) {
	r = &growing{Sender: c.Sender, last: c.At, index: map[uint64]int{}}
	r.Began, r.Namespace = c.At, c.Namespace
	m.open = append(m.open, r)
	before, rooted := m.links.ancestors(parent, maxBlocks)
	m.prepend(r, before)
	r.Headless = !rooted
	return r, len(r.Keys)
}

// follow is for a run with which r begins, and of which the command states what comes before.
// Only the end of a prompt was looked for: r is part of a request that loaded what is before,
// or begins with that.
func (m *Merger) follow(r *growing, c *traffic.Command, parent uint64, keys []uint64) (whole *growing, offset int) {
	for _, x := range m.near(place{c.Engine, parent}) {
		if at, fits := x.fits(c, parent, keys); fits && x != r {
			m.open = slices.DeleteFunc(m.open, func(o *growing) bool { return o == r })
			m.release(r)
			return x, at
		}
	}
	before, rooted := m.links.ancestors(parent, max(0, maxBlocks-len(r.Keys)))
	for _, k := range before {
		if _, circle := r.index[k]; circle {
			return r, 0
		}
	}
	m.prepend(r, before)
	r.Headless = !rooted
	return r, len(before)
}

// push adds a key to the end of a request.
func (m *Merger) push(r *growing, key uint64, kind traffic.Kind) {
	r.index[key] = len(r.Keys)
	r.Keys, r.done = append(r.Keys, key), append(r.done, kind)
	p := place{r.Engine, key}
	m.at[p] = append(m.at[p], r)
	m.keys++
}

// extend notes what a command does with the keys of a run that begins at offset.
func (m *Merger) extend(r *growing, c *traffic.Command, offset int, keys []uint64) {
	if offset < 0 {
		m.prepend(r, keys[:-offset])
	}
	for _, k := range keys {
		if at, here := r.index[k]; here {
			r.done[at] = max(r.done[at], c.Kind)
			continue
		}
		if len(r.Keys) >= maxBlocks {
			m.cut++
			return
		}
		m.push(r, k, c.Kind)
	}
}

// prepend puts keys before the first of a request.
func (m *Merger) prepend(r *growing, keys []uint64) {
	rest, done := r.Keys, r.done
	r.Keys, r.done = nil, nil
	for _, k := range keys {
		m.push(r, k, 0)
	}
	for i, k := range rest {
		r.index[k] = len(r.Keys)
		r.Keys, r.done = append(r.Keys, k), append(r.done, done[i])
	}
}
