package halfopen

import (
	"net"
	"net/netip"
	"sync"
)

// Table is the half-open connections of one listener. Make one with NewTable;
// all methods are safe for concurrent use.
type Table struct {
	limit int

	mu struct {
		sync.Mutex
		oldest  []*Place // in the order of their arrival
		count   map[netip.Prefix]int
		dropped uint64
	}
}

// Place is that of one connection in a table.
type Place struct {
	table   *Table
	conn    net.Conn
	network netip.Prefix
}

// NewTable returns a table for at most limit connections, at least 1.
func NewTable(limit int) *Table {
	t := &Table{limit: max(limit, 1)}
	t.mu.count = map[netip.Prefix]int{}
	return t
}

// Add gives conn a place. A full table first closes the oldest connection of
// the network that has most, so that a flood from one machine pushes out its
// own. The owner of conn calls Leave on the place, once the other side has
// proved who it is or conn is closed. crowded reports that more than half of
// the places are taken.
func (t *Table) Add(conn net.Conn) (p *Place, crowded bool) {
	p = &Place{table: t, conn: conn, network: networkOf(conn.RemoteAddr())}
	var victim *Place
	t.mu.Lock()
	if len(t.mu.oldest) >= t.limit {
		victim = t.victimLocked()
		t.removeLocked(victim)
		t.mu.dropped++
	}
	t.mu.oldest = append(t.mu.oldest, p)
	t.mu.count[p.network]++
	crowded = len(t.mu.oldest) > t.limit/2
	t.mu.Unlock()
	if victim != nil {
		_ = victim.conn.Close() // whoever serves it sees the error
	}
	return p, crowded
}

// Leave gives the place up. It reports whether the place was still held: false
// means that the table has closed the connection, or that Leave was called
// before.
func (p *Place) Leave() bool {
	p.table.mu.Lock()
	defer p.table.mu.Unlock()
	return p.table.removeLocked(p)
}

// Dropped counts the connections that the table has closed to make room.
func (t *Table) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.dropped
}

// Len is how many connections are half-open now.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.mu.oldest)
}

// victimLocked is the oldest place of the network that has most. Of several
// such networks it is the oldest of all.
func (t *Table) victimLocked() *Place {
	most := 0
	for _, n := range t.mu.count {
		most = max(most, n)
	}
	for _, p := range t.mu.oldest {
		if t.mu.count[p.network] == most {
			return p
		}
	}
	return nil // not reached: counts are those of the places
}

func (t *Table) removeLocked(p *Place) bool {
	for i, q := range t.mu.oldest {
		if q != p {
			continue
		}
		t.mu.oldest = append(t.mu.oldest[:i], t.mu.oldest[i+1:]...)
		if t.mu.count[p.network]--; t.mu.count[p.network] == 0 {
			delete(t.mu.count, p.network)
		}
		return true
	}
	return false
}

// loopback is every address by which a machine reaches itself alone.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// networkOf is the network of an address, or none.
func networkOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	switch {
	case ip.IsLoopback():
		return loopback
	case ip.Is4():
		return netip.PrefixFrom(ip, 32)
	}
	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}
