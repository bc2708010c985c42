package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/tcp"
	"cascadekv/dht/members"
	"cascadekv/dht/ring"
	"cascadekv/internal/config"
	"cascadekv/internal/munge"
	"cascadekv/internal/nodeaddr"
)

// Options describe a rank's connection to the others.
type Options struct {
	Config config.Config // rank, job, deadline.drain and peers.*
	Store  *cascade.Store
	Seeds  []string // of the membership, besides those of the configuration

	// Changed is called with the number of ranks after each change of the
	// membership, Replaced when another process has taken this rank's number.
	// Calls come from any goroutine, also before Join returns.
	Changed  func(ranks int)
	Replaced func()

	Log *slog.Logger
}

// Peers is a rank's connection to the others. Its methods are safe for concurrent
// use, but for Close.
type Peers struct {
	o         Options
	self      members.Member
	why       string // its fabric's address
	world     world  // nil without MPI
	worldSize int    // its ranks; 0 without MPI
	node      *dht.Node
	ready     chan struct{} // closed when node is set, or will not be
	members   atomic.Pointer[members.Members]

	ending     atomic.Bool // see Ending
	incomplete atomic.Bool // a rank of the world has died, or left before Ending
}

const (
	mungeTimeout = 5 * time.Second // of the question whether a munged answers
	leaveTimeout = 5 * time.Second // of Leave
)

// Join makes the store one of many. It waits for the other ranks with MPI only.
func Join(ctx context.Context, o Options) (*Peers, error) {
	p := &Peers{o: o, ready: make(chan struct{})}
	p.self = members.Member{Rank: fabric.Rank(o.Config.Rank), Incarnation: uint64(time.Now().UnixNano())}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	o.Store.Join(p.node)
	o.Log.Info("joined", "fabric", p.node.Fabric(), "addr", p.self.Addr, "gossip", p.GossipAddr(), "why", p.why)
	return p, nil
}

func (p *Peers) open(ctx context.Context) error {
	secret, err := p.o.Config.Peers.Secret()
	if err != nil {
		return err
	}
	if p.self.Host, err = os.Hostname(); err != nil {
		return err
	}
	if p.o.Config.Peers.Fabric == "mpi" {
		return p.openMPI(ctx, secret)
	}
	return p.openTCP(ctx, secret)
}

func (p *Peers) openTCP(ctx context.Context, secret string) error {
	c := &p.o.Config.Peers
	fab, err := p.listen(ctx, secret)
	if err != nil {
		return err
	}
	if err := p.serve(fab); err != nil {
		return err
	}
	return p.gossip(ctx, secret, append(c.SeedList(), p.o.Seeds...))
}

// listen opens the fabric over TCP, and notes where others reach it.
func (p *Peers) listen(ctx context.Context, secret string) (tcpLink, error) {
	c := &p.o.Config.Peers
	authority, err := p.authority(ctx)
	if err != nil {
		return tcpLink{}, err
	}
	place, err := p.place(ctx, "peers.listen", c.Listen)
	if err != nil {
		return tcpLink{}, err
	}
	p.why = place.Why
	var fab *tcp.Fabric
	err = nodeaddr.EachPort(place.Bind, c.Ports, false, func(bind string) (err error) {
		fab, err = tcp.New(tcp.Options{
			Self: p.self.Rank, Incarnation: p.self.Incarnation, Listen: bind, Advertise: place.Public, Job: p.job(), Secret: []byte(secret), Placement: ring.Version,
			Authority: authority, RequireAuthority: c.Munge == "require",
			Observe: (&strangers{log: p.o.Log}).observe,
		})
		return err
	})
	if err != nil {
		return tcpLink{}, err
	}
	p.self.Addr = fab.Addr()
	return tcpLink{fab, authority != nil}, nil
}

// authority returns the node's munged; nil where none answers or none is to be
// asked.
func (p *Peers) authority(ctx context.Context) (tcp.Authority, error) {
	c := &p.o.Config.Peers
	if c.Munge == "off" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, mungeTimeout)
	defer cancel()
	m, err := munge.Find(ctx, c.MungeSock)
	switch {
	case err == nil:
		return m, nil
	case c.Munge == "require":
		return nil, fmt.Errorf("peers.munge = \"require\": %w; start munged on this node, or set peers.munge to \"auto\"", err)
	}
	p.o.Log.Debug("ranks prove that they know the secret, not as which user they run", "err", err)
	return nil, nil
}

// tcpLink describes in the rank's statistics, and so to cascade doctor, how ranks
// prove who they are.
type tcpLink struct {
	*tcp.Fabric
	munge bool
}

func (l tcpLink) Link() string {
	if l.munge {
		return "ranks prove the secret and, by MUNGE, their user"
	}
	return "ranks prove the secret; no MUNGE"
}

// serve makes the node, which owns fab.
func (p *Peers) serve(fab fabric.Fabric) (err error) {
	p.node, err = dht.New(dht.Options{
		Fabric: fab, Incarnation: p.self.Incarnation, Host: p.self.Host, Replicas: p.o.Config.Peers.Homes, Log: p.o.Log,
		Answered: func(r fabric.Rank) {
			if m := p.members.Load(); m != nil {
				m.Answered(r)
			}
		},
		Unanswered: func(r fabric.Rank, err error) {
			if m := p.members.Load(); m != nil {
				m.Suspect(r, err)
			}
		},
	}, cascade.Local{Store: p.o.Store})
	if err != nil {
		return errors.Join(err, fab.Close())
	}
	close(p.ready)
	return nil
}

// gossip starts the membership.
func (p *Peers) gossip(ctx context.Context, secret string, seeds []string) error {
	c := &p.o.Config.Peers
	place, err := p.place(ctx, "peers.gossip", c.Gossip)
	if err != nil {
		return err
	}
	return nodeaddr.EachPort(place.Bind, c.Ports, true, func(bind string) error {
		m, err := members.Start(ctx, members.Options{
			Self: p.self, Bind: bind, Advertise: withPort0(place.Public),
			Job: p.job(), Secret: []byte(secret), Placement: ring.Version, Seeds: seeds, Start: p.start(), Log: p.o.Log, OnChange: p.changed,
		})
		if err == nil {
			p.members.Store(m)
		}
		return err
	})
}

// start is how many ranks this one starts with; 0: not known. A program that takes over from another starts
// with those that the other reached, not with those of the job's start, of which some may be dead.
func (p *Peers) start() int {
	if len(p.o.Seeds) > 0 {
		return min(p.o.Config.Peers.Ranks, 1+len(p.o.Seeds))
	}
	return p.o.Config.Peers.Ranks
}

// place finds where one of the listeners for other ranks is.
func (p *Peers) place(ctx context.Context, key, listen string) (nodeaddr.Place, error) {
	c := &p.o.Config.Peers
	place, err := nodeaddr.This().ListenAt(ctx, nodeaddr.Wish{Listen: listen, Advertise: c.Advertise, Interface: c.Interface})
	if err != nil {
		return place, fmt.Errorf("%s: %w", key, err)
	}
	return place, nil
}

// withPort0 is the form members want an advertised host in; port 0 stands for
// that of the listener.
func withPort0(host string) string {
	if host == "" {
		return ""
	}
	return net.JoinHostPort(host, "0")
}

// job returns the name that separates jobs with the same secret.
func (p *Peers) job() string {
	if p.o.Config.Job == "" {
		return "cascade"
	}
	return p.o.Config.Job
}

// changed passes events of the membership on: together, for a ring takes a while to make,
// and with some of the ranks most names would have other homes.
func (p *Peers) changed(events []members.Event) {
	<-p.ready
	if p.node == nil { // it could not be made: Join fails
		return
	}
	var others []dht.Member
	for _, e := range events {
		m := e.Member
		switch {
		case m.Rank != p.self.Rank:
			if p.endsInWorld(e) {
				p.incomplete.Store(true)
			}
			others = append(others, dht.Member{Rank: m.Rank, Incarnation: m.Incarnation, Host: m.Host, Addr: m.Addr, State: m.State})
		case e.Kind == members.Replaced:
			p.o.Replaced()
		}
	}
	if len(others) > 0 {
		p.node.SetMembers(others...)
		p.o.Changed(p.node.Stats().Ranks)
	}
}

// endsInWorld reports whether an event is the end of a rank of this rank's MPI world, if
// only that another process has its number.
func (p *Peers) endsInWorld(e members.Event) bool {
	m := e.Member
	switch {
	case int64(m.Rank) >= int64(p.worldSize) || m.Incarnation < p.self.Incarnation:
		return false
	case m.Incarnation > p.self.Incarnation:
		return true
	}
	return e.Kind == members.Died || e.Kind == members.Left && !p.ending.Load()
}

// Node returns the rank's node of the distributed store. Peers owns it.
func (p *Peers) Node() *dht.Node { return p.node }

// OverMPI reports whether the fabric is MPI, which a process can start only once.
func (p *Peers) OverMPI() bool { return p.world != nil }

// GossipAddr returns the address at which the membership of this rank is reached, a
// seed for others.
func (p *Peers) GossipAddr() string { return p.members.Load().Addr() }

// Reached returns the gossip addresses of the other ranks, seeds for a program that
// takes over from this one.
func (p *Peers) Reached() []string { return p.members.Load().Reached() }

// Ending is called when this rank begins to end: others that leave from then on
// probably end for the same reason.
func (p *Peers) Ending() { p.ending.Store(true) }

// Leave publishes where this rank's blocks lie, then its end. Ranks that do not
// receive it find out by themselves: when all ranks end at once nobody is left to
// listen. It waits for five seconds at most.
func (p *Peers) Leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	p.node.Settled(ctx)
	if err := p.members.Load().Leave(ctx); err != nil {
		p.o.Log.Info("not all ranks received that this one leaves", "err", err)
	}
}

// Close ends the connection, after the store that uses it. An error, as when another
// rank died and MPI holds on to a message for it, costs no block.
func (p *Peers) Close() error {
	var err error
	if m := p.members.Load(); m != nil {
		if p.node == nil {
			close(p.ready)
		}
		err = m.Close()
	}
	if p.node != nil {
		err = errors.Join(err, p.node.Close())
	}
	if p.world != nil {
		err = errors.Join(err, p.world.close(p.incomplete.Load()))
	}
	return err
}
