package tcp

import (
	"testing"

	"cascadekv/dht/fabric"
	"cascadekv/internal/testing/fabrictest"
)

const secret = "sixteen bytes or more"

// options are those of a rank of the tests' job.
func options(rank fabric.Rank, incarnation uint64) Options {
	return Options{
		Self: rank, Incarnation: incarnation, Listen: "127.0.0.1:0",
		Job: "tests", Secret: []byte(secret), Placement: 1,
	}
}

// start starts a fabric that is closed when the test ends.
func start(t *testing.T, o Options) *Fabric {
	t.Helper()
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// serve starts a rank that serves the suite.
func serve(t *testing.T, o Options) (*Fabric, *fabrictest.Peer) {
	t.Helper()
	p, err := fabrictest.NewPeer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the fabric's
		if s := p.Stats(); s.Holds != 0 || s.Faults != 0 || s.Running != 0 {
			t.Errorf("%v at its end: %+v", o.Self, s)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	f := start(t, o)
	if err := f.Serve(p); err != nil {
		t.Fatal(err)
	}
	return f, p
}

// as is what others are told of f.
func as(f *Fabric) fabric.Peer {
	return fabric.Peer{Rank: f.options.Self, Incarnation: f.options.Incarnation, Addr: f.Addr()}
}

func TestConformance(t *testing.T) {
	first, peer := serve(t, options(1, 1))
	second, _ := serve(t, options(2, 1))
	fabrictest.Run(t, fabrictest.Config{
		Fabric: start(t, options(0, 1)),
		Peers:  []fabric.Peer{as(first), as(second)},
		Restart: func(old fabric.Peer) fabric.Peer {
			if err := first.Close(); err != nil {
				t.Error(err)
			}
			if s := peer.Stats(); s.Holds != 0 || s.Running != 0 {
				t.Errorf("after Close: %+v", s)
			}
			f, _ := serve(t, options(old.Rank, old.Incarnation+1))
			return as(f)
		},
	})
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"short secret":  func(o *Options) { o.Secret = o.Secret[:MinSecret-1] },
		"long job":      func(o *Options) { o.Job = string(make([]byte, MaxJob+1)) },
		"streams":       func(o *Options) { o.Streams = inbound },
		"all addresses": func(o *Options) { o.Listen = ":0" },
		"address":       func(o *Options) { o.Listen = "nowhere" },
	} {
		o := options(0, 1)
		change(&o)
		if f, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
			_ = f.Close()
		}
	}
	o := options(0, 1)
	o.Listen, o.Advertise = ":0", "node7"
	if got := start(t, o).Addr(); got[:6] != "node7:" {
		t.Errorf("advertises %q", got)
	}
}
