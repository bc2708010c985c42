package members

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/race"
)

// byAddress is memberlist's own network for tests, which finds nodes by names that they do not have here.
type byAddress struct{ *memberlist.MockTransport }

func (t byAddress) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.MockTransport.WriteTo(b, a.Addr)
}

func (t byAddress) DialAddressTimeout(a memberlist.Address, limit time.Duration) (net.Conn, error) {
	return t.MockTransport.DialTimeout(a.Addr, limit)
}

// Shutdown leaves packets and streams that still come unanswered: who sends them would wait for ever.
func (t byAddress) Shutdown() error {
	go func() {
		for end := time.After(time.Minute); ; {
			select {
			case <-t.PacketCh():
			case c := <-t.StreamCh():
				_ = c.Close()
			case <-end:
				return
			}
		}
	}()
	return t.MockTransport.Shutdown()
}

// closeAll ends ranks, and returns when nothing of them is left.
func closeAll(ranks []*Members) {
	for _, m := range ranks {
		go m.Close()
	}
	time.Sleep(5 * time.Minute)
}

// TestLaunch starts as many ranks as a large job has, within a second, with the first for their seed: on the clock of the
// simulation they are one cache, each knowing all, in ten seconds.
func TestLaunch(t *testing.T) {
	n := 256
	if race.On {
		n = 64
	}
	const start, limit = time.Second, 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var network memberlist.MockNetwork
		var transports []byAddress
		for i := range n {
			transports = append(transports, byAddress{network.NewTransport(fmt.Sprint(i))})
		}
		began := time.Now()
		ranks := make([]*Members, n)
		for i := range ranks {
			m, err := Start(t.Context(), Options{
				Self: Member{Rank: fabric.Rank(i), Incarnation: 1, Addr: fmt.Sprintf("127.0.0.1:%d", 20000+i), Host: fmt.Sprint("nid", i)},
				Bind: fmt.Sprintf("127.0.0.1:%d", i+1), Job: "17", Secret: make([]byte, 32), Placement: 1, Seeds: []string{"127.0.0.1:1"},
				OnChange: func([]Event) {}, transport: transports[i],
			})
			if err != nil {
				t.Fatal(err)
			}
			ranks[i] = m
			time.Sleep(rand.N(2 * start / time.Duration(n)))
		}
		defer closeAll(ranks)
		last := 0
		for time.Since(began) < 30*time.Second {
			least := n
			for _, m := range ranks {
				least = min(least, m.list.NumMembers())
			}
			if least != last {
				last = least
				t.Logf("%v: the least that a rank knows are %d of %d", time.Since(began).Round(time.Millisecond), least, n)
			}
			if least == n {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); last < n || took > limit {
			t.Errorf("after %v some know %d of %d ranks", took, last, n)
		}
	})
}

// TestStartTogether: a rank that knows how many start takes the others in at once, and those that came
// when no more have for a while.
func TestStartTogether(t *testing.T) {
	const n = 8
	for name, expected := range map[string]int{"all are here": n, "one is missing": n + 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var network memberlist.MockNetwork
				var transports []byAddress
				for i := range n {
					transports = append(transports, byAddress{network.NewTransport(fmt.Sprint(i))})
				}
				began := time.Now()
				calls, heard := 0, 0
				var first, joined time.Duration // of the calls, of the last rank
				ranks := make([]*Members, n)
				for i := range ranks {
					o := Options{
						Self: Member{Rank: fabric.Rank(i), Incarnation: 1, Addr: fmt.Sprintf("127.0.0.1:%d", 20000+i)},
						Bind: fmt.Sprintf("127.0.0.1:%d", i+1), Job: "17", Secret: make([]byte, 32), Placement: 1, Start: expected,
						OnChange: func([]Event) {}, transport: transports[i],
					}
					if i > 0 {
						o.Seeds = []string{"127.0.0.1:1"}
					} else {
						o.OnChange = func(events []Event) {
							if calls++; calls == 1 {
								first, heard = time.Since(began), len(events)
							}
						}
					}
					m, err := Start(t.Context(), o)
					if err != nil {
						t.Fatal(err)
					}
					ranks[i] = m
					joined = time.Since(began)
					time.Sleep(500 * time.Millisecond)
				}
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if calls != 1 || heard != n-1 {
					t.Errorf("called %d times, first for %d ranks, want one call for %d", calls, heard, n-1)
				}
				if expected == n && first > joined+time.Second || expected > n && (first < joined+startPause || first > joined+startPause+time.Second) {
					t.Errorf("called after %v; the last rank came after %v", first, joined)
				}
				closeAll(ranks)
			})
		})
	}
}
