package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/tcp"
	"cascadekv/dht/members"
	"cascadekv/dht/ring"
	"cascadekv/internal/arena"
	"cascadekv/internal/config"
	"cascadekv/internal/munge"
)

// peers is a rank's connection to the others.
type peers struct {
	c     config.Config
	log   *slog.Logger
	self  members.Member
	world world // nil without MPI

	node    *dht.Node
	served  chan struct{} // closed when node is there, or will not come
	members atomic.Pointer[members.Members]

	seeds    []string // besides those of the configuration
	resized  func(ranks int)
	adopter  *adopter
	adopting sync.WaitGroup
	stop     context.CancelFunc // of the adopter
	replaced chan struct{}      // closed when another process took this rank's number
	once     sync.Once

	ending     atomic.Bool // this rank is about to end
	incomplete atomic.Bool // a rank has died, or left before this one was about to end
}

// world is the MPI world that this process was started in.
type world interface {
	rank() int
	share(p []byte) ([]byte, error)         // what rank 0 gave, on all ranks
	fabric(oneSided) (fabric.Fabric, error) // which the world outlives
	// close ends MPI. A world is incomplete when some of its ranks ended before.
	close(incomplete bool) error
}

// joinPeers makes store one of many, which are found at the seeds, too. resized is
// told of how many, again and again.
func joinPeers(ctx context.Context, c config.Config, store *cascade.Store, seeds []string, resized func(ranks int), log *slog.Logger) (*peers, error) {
	p := &peers{c: c, log: log, seeds: seeds, resized: resized, adopter: newAdopter(store, fabric.Rank(c.Rank), log), stop: func() {}, served: make(chan struct{}), replaced: make(chan struct{})}
	p.self = members.Member{Rank: fabric.Rank(c.Rank), Incarnation: uint64(time.Now().UnixNano())}
	secret, err := c.Peers.Secret()
	if err == nil {
		p.self.Host, err = os.Hostname()
	}
	switch {
	case err != nil:
	case c.Peers.Fabric == "mpi":
		err = p.openMPI(ctx, store, secret)
	default:
		err = p.openTCP(ctx, store, secret)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	store.Join(p.node)
	p.adopter.node = p.node
	adopting, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	p.adopting.Go(func() { p.adopter.run(adopting, adoptQuiet) })
	log.Info("joined", "fabric", p.node.Fabric(), "addr", p.self.Addr, "gossip", p.members.Load().Addr())
	return p, nil
}

func (p *peers) openTCP(ctx context.Context, store *cascade.Store, secret string) error {
	authority, err := p.authority(ctx)
	if err != nil {
		return err
	}
	bind, public, err := thisNode().listenAt(ctx, p.c.Peers.Listen, p.c.Peers.Advertise)
	if err != nil {
		return fmt.Errorf("peers.listen: %w", err)
	}
	fab, err := tcp.New(tcp.Options{
		Self: p.self.Rank, Incarnation: p.self.Incarnation, Listen: bind, Advertise: public, Job: p.job(), Secret: []byte(secret), Placement: ring.Version,
		Authority: authority, RequireAuthority: p.c.Peers.Munge == "require",
		Observe: (&strangers{log: p.log}).observe,
	})
	if err != nil {
		return err
	}
	p.self.Addr = fab.Addr()
	if err := p.serve(tcpLink{fab, authority != nil}, store); err != nil {
		return err
	}
	return p.gossip(ctx, secret, append(p.c.Peers.SeedList(), p.seeds...))
}

// authority is the node's munged, if it answers and may be asked.
func (p *peers) authority(ctx context.Context) (tcp.Authority, error) {
	if p.c.Peers.Munge == "off" {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, mungePatience)
	defer cancel()
	m, err := munge.Find(ctx, p.c.Peers.MungeSock)
	switch {
	case err == nil:
		return m, nil
	case p.c.Peers.Munge == "require":
		return nil, fmt.Errorf("peers.munge = \"require\": %w; start munged on this node, or set peers.munge to \"auto\"", err)
	}
	p.log.Debug("ranks prove that they know the secret, not as which user they run", "err", err)
	return nil, nil
}

// mungePatience bounds the wait for a munged at the start.
const mungePatience = 5 * time.Second

// tcpLink lets the rank's statistics, and so cascade doctor, say how ranks know
// each other.
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

// openMPI joins the ranks that were started together. Rank 0 tells the others
// what TCP ranks have from their configuration: a seed and a secret.
func (p *peers) openMPI(ctx context.Context, store *cascade.Store, secret string) error {
	var err error
	p.world, err = together(ctx, p.log, func() (world, error) { return startWorld(p.c.Deadline.Drain.Std(), p.log) })
	if err != nil {
		return err
	}
	if first := p.world.rank(); first != p.c.Rank {
		return fmt.Errorf("rank = %d, but this is rank %d of its MPI world: leave rank out of the configuration", p.c.Rank, first)
	}
	seeds := p.c.Peers.SeedList()
	var invitation []byte
	if p.c.Rank == 0 {
		if secret == "" {
			secret = rand.Text()
		}
		if err := p.gossip(ctx, secret, seeds); err != nil {
			return err
		}
		invitation = []byte(p.members.Load().Addr() + " " + secret)
	}
	w := p.world
	invitation, err = together(ctx, p.log, func() ([]byte, error) { return w.share(invitation) })
	if errors.Is(err, errNotTogether) {
		p.world = nil // its thread is in that call: only the process's end ends it
	}
	if err != nil {
		return err
	}
	exposed, err := p.expose(store)
	if err != nil {
		return err
	}
	fab, err := p.world.fabric(exposed)
	if err != nil {
		return err
	}
	if err := p.serve(fab, store); err != nil || p.c.Rank == 0 {
		return err
	}
	seed, secret, _ := strings.Cut(string(invitation), " ")
	return p.gossip(ctx, secret, append(seeds, seed))
}

// oneSided is memory that other ranks may copy from by themselves.
type oneSided struct {
	from   int64 // in bytes, the least read that does; 0 is none
	region uint32
	memory []byte
}

// expose maps the store's memory once more, for as long as the process lives:
// others may copy from it while the store closes.
func (p *peers) expose(store *cascade.Store) (oneSided, error) {
	o := oneSided{from: int64(p.c.Peers.OneSided)}
	if o.from == 0 {
		return o, nil
	}
	region, file, size := cascade.Local{Store: store}.SharedFile()
	memory, err := arena.MapShared(file, size)
	if err != nil {
		return o, fmt.Errorf("peers.one_sided_from: %w; set it to 0", err)
	}
	o.region, o.memory = region, memory
	return o, nil
}

// How long a rank waits for the others to start before it says so, and before
// it gives up. They first read the indexes of their segments.
const (
	togetherWarn  = 30 * time.Second
	togetherLimit = 15 * time.Minute
)

var errNotTogether = errors.New("the ranks of this MPI world are not all there; see what the others say")

// together makes a call into MPI that ends when all ranks make it. Nothing else
// ends it: a rank that is told to stop, or has waited for too long, leaves it
// behind and ends.
func together[T any](ctx context.Context, log *slog.Logger, call func() (T, error)) (none T, err error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := call()
		done <- outcome{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, togetherLimit)
	defer cancel()
	warn := time.NewTicker(togetherWarn)
	defer warn.Stop()
	for {
		select {
		case o := <-done:
			return o.value, o.err
		case <-ctx.Done():
			return none, fmt.Errorf("%w: %w", errNotTogether, ctx.Err())
		case <-warn.C:
			log.Warn("waiting for the other ranks of this MPI world; did one of them not start?")
		}
	}
}

// serve makes the node, which closes fab.
func (p *peers) serve(fab fabric.Fabric, store *cascade.Store) (err error) {
	p.node, err = dht.New(dht.Options{
		Fabric: fab, Incarnation: p.self.Incarnation, Host: p.self.Host, Replicas: p.c.Peers.Homes, Log: p.log,
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
	}, cascade.Local{Store: store})
	if err != nil {
		return errors.Join(err, fab.Close())
	}
	close(p.served)
	return nil
}

// gossip starts the membership.
func (p *peers) gossip(ctx context.Context, secret string, seeds []string) error {
	bind, public, err := thisNode().listenAt(ctx, p.c.Peers.Gossip, p.c.Peers.Advertise)
	if err != nil {
		return fmt.Errorf("peers.gossip: %w", err)
	}
	m, err := members.Start(ctx, members.Options{
		Self: p.self, Bind: bind, Advertise: withPort0(public),
		Job: p.job(), Secret: []byte(secret), Placement: ring.Version, Seeds: seeds, Log: p.log, OnChange: p.changed,
	})
	if err == nil {
		p.members.Store(m)
	}
	return err
}

// job tells jobs apart that share a secret.
func (p *peers) job() string {
	if p.c.Job == "" {
		return "cascade"
	}
	return p.c.Job
}

// changed passes an event of the membership on.
func (p *peers) changed(e members.Event) {
	<-p.served
	m := e.Member
	if p.node == nil {
		return // it could not be made: this process is about to end
	}
	if m.Rank != p.self.Rank {
		if e.Kind == members.Died || e.Kind == members.Left && !p.ending.Load() {
			p.incomplete.Store(true)
		}
		p.node.SetMembers(dht.Member{Rank: m.Rank, Incarnation: m.Incarnation, Host: m.Host, Addr: m.Addr, State: m.State})
		p.resized(p.node.Stats().Ranks)
		p.adopter.wake()
	} else if e.Kind == members.Replaced {
		p.once.Do(func() { close(p.replaced) })
	}
}

// leave tells the others that this rank goes, once they know where its blocks
// lie. Those that do not hear it find out by themselves: when all ranks end at
// once nobody is left to listen.
func (p *peers) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	p.node.Settled(ctx.Done())
	if err := p.members.Load().Leave(ctx); err != nil {
		p.log.Info("not all ranks heard that this one goes", "err", err)
	}
}

// leavePatience bounds what a rank that ends spends on telling the others.
const leavePatience = 5 * time.Second

// stopAdopting ends the adopter. Calls after the first do nothing.
func (p *peers) stopAdopting() {
	p.stop()
	p.adopting.Wait()
}

// close ends what is open. What does not end, because another rank died and MPI
// holds on to a message for it, costs no block: it is no failure of the drain.
func (p *peers) close() {
	p.stopAdopting()
	var err error
	if m := p.members.Load(); m != nil {
		if p.node == nil {
			close(p.served)
		}
		err = m.Close()
	}
	if p.node != nil {
		err = errors.Join(err, p.node.Close())
	}
	if p.world != nil {
		err = errors.Join(err, p.world.close(p.incomplete.Load()))
	}
	if err != nil {
		p.log.Warn("the connection to the other ranks does not end in good order", "err", err)
	}
}
