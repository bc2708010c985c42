package halfopen

import (
	"net"
	"testing"
)

// conn is a connection from an address. The zero of closed is open.
type conn struct {
	net.Conn
	from   string
	closed bool
}

func (c *conn) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 1}
}

func (c *conn) Close() error {
	c.closed = true
	return nil
}

// TestFlood: the network that has most loses its oldest connections, and
// nobody else loses one.
func TestFlood(t *testing.T) {
	for name, c := range map[string]struct{ honest, stranger, again string }{
		"IPv4":      {"10.0.0.1", "10.0.0.2", "10.0.0.2"},
		"IPv6 /64":  {"2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1:ffff::1"},
		"loopback":  {"10.0.0.1", "127.0.0.1", "127.1.2.3"},
		"loopback6": {"10.0.0.1", "::1", "127.0.0.1"},
		"mapped":    {"10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			table := NewTable(8)
			var honest, strangers []*conn
			for range 3 {
				honest = append(honest, &conn{from: c.honest})
				table.Add(honest[len(honest)-1])
			}
			for i := range 100 {
				from := c.stranger
				if i%2 == 1 {
					from = c.again
				}
				strangers = append(strangers, &conn{from: from})
				if _, crowded := table.Add(strangers[i]); crowded != (3+i+1 > 4) {
					t.Errorf("crowded %t with stranger %d", crowded, i)
				}
			}
			for i, h := range honest {
				if h.closed {
					t.Errorf("honest connection %d was closed", i)
				}
			}
			for i, s := range strangers {
				if want := i < 95; s.closed != want {
					t.Errorf("connection %d of the flood is closed: %t, want %t", i, s.closed, want)
				}
			}
			if table.Len() != 8 || table.Dropped() != 95 {
				t.Errorf("%d in the table, %d dropped", table.Len(), table.Dropped())
			}
		})
	}
}

// TestManyNetworks: when each network has one connection, the oldest goes.
func TestManyNetworks(t *testing.T) {
	table := NewTable(2)
	all := []*conn{{from: "10.0.0.1"}, {from: "10.0.0.2"}, {from: "10.0.0.3"}}
	var places []*Place
	for _, c := range all {
		p, _ := table.Add(c)
		places = append(places, p)
	}
	if !all[0].closed || all[1].closed || all[2].closed {
		t.Errorf("closed: %t %t %t, want the first alone", all[0].closed, all[1].closed, all[2].closed)
	}
	for i, p := range places {
		if left := p.Leave(); left != (i > 0) {
			t.Errorf("place %d was held: %t", i, left)
		}
		if p.Leave() {
			t.Errorf("place %d was left twice", i)
		}
	}
	if table.Len() != 0 || len(table.mu.count) != 0 {
		t.Errorf("%d places and %d networks are left", table.Len(), len(table.mu.count))
	}
}
