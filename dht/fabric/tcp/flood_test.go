package tcp

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

// stranger is what somebody without the secret does with a connection. A stranger
// that returns keeps its connection open.
var strangers = map[string]func(t *testing.T, f *Fabric, conn net.Conn){
	"silent": func(*testing.T, *Fabric, net.Conn) {},
	"noise": func(_ *testing.T, _ *Fabric, conn net.Conn) {
		_, _ = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	},
	"half a greeting": func(_ *testing.T, _ *Fabric, conn net.Conn) {
		_, _ = conn.Write([]byte(magic + "\x02\x00half"))
	},
	"a whole greeting and no proof": func(t *testing.T, f *Fabric, conn net.Conn) {
		g := f.identity.greeting(forCalls, f.Self()) // the job's name is no secret
		g.from = 0
		raw := g.encode()
		_, _ = conn.Write(raw[:])
	},
	"a wrong proof": func(t *testing.T, f *Fabric, conn net.Conn) {
		g := f.identity.greeting(forPayloads, f.Self())
		g.from = 0
		raw := g.encode()
		_, _ = conn.Write(append(raw[:], make([]byte, codeSize)...))
	},
}

// TestStrangersKeepNobodyOut: connections of strangers that never end by
// themselves fill the handshake. Ranks that read go on, and others come in.
func TestStrangersKeepNobodyOut(t *testing.T) {
	for name, behave := range strangers {
		t.Run(name, func(t *testing.T) {
			o := options(1, 1)
			o.OpenTimeout = time.Hour // so that it is not patience that ends
			target, _ := serve(t, o)
			before := start(t, options(0, 1))
			before.SetPeer(as(target))
			src, err := fabrictest.Remote{Fabric: before, Rank: 1}.Put(soon(t), 1<<20, 3)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 * halfOpen {
				behave(t, target, dial(t, target))
			}
			var ranks sync.WaitGroup
			for i := range 8 {
				young := start(t, options(fabric.Rank(2+i), 1))
				young.SetPeer(as(target))
				dst := mapped(t, 1<<20)
				ranks.Go(func() {
					if err := young.Read(soon(t), 1, src, dst); err != nil {
						t.Errorf("a rank that came later reads: %v", err)
					} else if err := fabrictest.Check(dst, 3, 0); err != nil {
						t.Error(err)
					}
				})
			}
			dst := mapped(t, 1<<20)
			if err := before.Read(soon(t), 1, src, dst); err != nil {
				t.Errorf("a rank that was there before reads: %v", err)
			}
			ranks.Wait()
			target.mu.Lock()
			here := len(target.here)
			target.mu.Unlock()
			if most := halfOpen + 2*9 + 10; here > most {
				t.Errorf("%d connections are open, more than %d", here, most)
			}
		})
	}
}

// TestFloodGoesOn: strangers come as fast as they can, and stay. Ranks come in
// again and again meanwhile.
func TestFloodGoesOn(t *testing.T) {
	o := options(1, 1)
	o.OpenTimeout = time.Hour
	target, _ := serve(t, o)
	done := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		var open []net.Conn
		defer func() {
			for _, c := range open {
				_ = c.Close()
			}
		}()
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			conn, err := net.Dial("tcp", target.Addr())
			if err != nil {
				t.Errorf("stranger %d: %v", i, err)
				return
			}
			if open = append(open, conn); len(open) > 2*halfOpen {
				_ = open[0].Close()
				open = open[1:]
			}
		}
	})
	until(t, "the flood fills the table", func() bool { return target.half.Dropped() > 0 })
	for i := range 20 {
		young := start(t, options(0, uint64(1+i)))
		young.SetPeer(as(target))
		until(t, fmt.Sprintf("life %d comes in", i), func() bool {
			_, err := young.Call(soon(t), 1, []byte("e"))
			return err == nil
		})
		if err := young.Close(); err != nil {
			t.Error(err)
		}
	}
	close(done)
	flood.Wait()
}

// TestSlowPeers: who is slow to greet has all of OpenTimeout, unless more than
// half of the table is taken: then who came after that is not waited for.
func TestSlowPeers(t *testing.T) {
	o := options(1, 1)
	o.OpenTimeout = time.Hour
	target, _ := serve(t, o)
	var slow []net.Conn
	for range halfOpen/2 + 8 {
		slow = append(slow, dial(t, target))
	}
	for i, conn := range slow[halfOpen/2:] {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Errorf("connection %d in the crowd read %d bytes, error %v; want that it is closed", i, n, err)
		}
	}
	if n := target.half.Dropped(); n > 0 {
		t.Errorf("%d were dropped, and there was room", n)
	}
	me := golden()
	*me = identity{self: 0, incarnation: 1, placement: 1, job: "tests", key: target.identity.key}
	if err := me.open(t.Context(), slow[0], forCalls, 1, 1); err != nil {
		t.Errorf("the first, which greets at last: %v", err)
	}
}

// asked is an authority that counts how often it is asked, and how often at once.
type asked struct {
	mu        sync.Mutex
	now, most int
	all       int
	release   chan struct{} // Verify waits for it; nil does not
}

func (a *asked) Sign(context.Context, []byte) ([]byte, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	return []byte("credential"), nil
}

func (a *asked) Verify(ctx context.Context, _, _ []byte) error {
	a.mu.Lock()
	a.all++
	a.now++
	a.most = max(a.most, a.now)
	a.mu.Unlock()
	select {
	case <-a.release:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now--
	return ctx.Err()
}

func (a *asked) counts() (most, all int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.most, a.all
}

// TestStrangersStartNoPrograms: the authority is asked about nobody who does not
// know the secret, and about few at once who do.
func TestStrangersStartNoPrograms(t *testing.T) {
	a := &asked{release: make(chan struct{})}
	o := options(1, 1)
	o.Authority, o.OpenTimeout = a, time.Minute
	var told observer
	o.Observe = told.observe
	target, _ := serve(t, o)
	for name, behave := range strangers {
		conn := dial(t, target)
		behave(t, target, conn)
		if name == "a wrong proof" {
			_ = conn.Close()
			told.wait(t, "does not know the secret")
		}
	}
	if _, all := a.counts(); all > 0 {
		t.Errorf("the authority was asked %d times about strangers", all)
	}
	const members = 3 * vouchers
	var ranks sync.WaitGroup
	for i := range members {
		o := options(fabric.Rank(2+i), 1)
		o.Authority, o.OpenTimeout = &asked{release: closed()}, time.Minute
		young := start(t, o)
		young.SetPeer(as(target))
		ranks.Go(func() {
			if _, err := young.Call(soon(t), 1, []byte("e")); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "the authority is asked about some", func() bool { most, _ := a.counts(); return most == vouchers })
	until(t, "the others have proved the secret", func() bool { return target.half.Len() <= len(strangers) })
	if most, _ := a.counts(); most > vouchers {
		t.Errorf("the authority was asked about %d at once", most)
	}
	close(a.release)
	ranks.Wait()
	if most, _ := a.counts(); most > vouchers {
		t.Errorf("the authority was asked about %d at once", most)
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
