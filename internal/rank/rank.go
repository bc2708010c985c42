package rank

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/internal/buildinfo"
	"cascadekv/internal/config"
	"cascadekv/internal/handover"
	"cascadekv/internal/rank/peers"
	"cascadekv/internal/rank/program"
	"cascadekv/internal/server"
)

// Options describe a rank.
type Options struct {
	Config   config.Config // as Load returns it
	Password string        // of clients, "" for none
	SlurmJob uint64        // the id of the job that this process is in; 0: none

	// Program is replaced by an upgrade. With a State the rank goes on with what the
	// program before this one had. The zero value can not be upgraded.
	Program program.Program

	// ArenaLost is called when another program has truncated the arena file: its
	// memory must not be touched any more, so that the rank can not be shut down
	// either. HandleFaults is called once, before the arena is used, with a function
	// that returns such an error for the panic of a goroutine (package fault) that
	// touched what is gone. Nil ArenaLost: Serve returns the error.
	ArenaLost    func(error)
	HandleFaults func(faulted func(panicked any) error)

	Log *slog.Logger
}

// Rank is a store with its server and its connection to the other ranks. Its
// methods are safe for concurrent use.
type Rank struct {
	levels   *levels
	store    *cascade.Store
	settings *settings
	work     *background
	adopter  *adopter
	peers    *peers.Peers // nil: the rank is alone
	server   *server.Server
	program  program.Program
	log      *slog.Logger

	failed chan error // capacity 1: why the rank cannot go on
	ending sync.Mutex // held by what ends this program: Shutdown, or an upgrade
}

// background is work that ends before the store is closed.
type background struct {
	sync.WaitGroup
	ctx  context.Context
	stop context.CancelFunc
}

func (b *background) end() {
	b.stop()
	b.Wait()
}

// ErrReplaced is returned by Serve when another process has joined with this rank's
// number.
var ErrReplaced = errors.New("another process has this rank's number now: give each rank its own, peers.* and rank in the configuration")

// Open makes a rank that is ready to serve. When ctx ends it returns soon, unless a
// file system does not answer; nothing was served then, and the tiers are as a crash
// would leave them. With a State it is not cut short: what the program before had
// must be drained.
func Open(ctx context.Context, o Options) (_ *Rank, err error) {
	c, log, state := &o.Config, o.Log, o.Program.State
	if o.Program.StateErr != nil {
		log.Error("the state of the program before this one is of no use: its clients are disconnected", "err", o.Program.StateErr)
	}
	successor := state != nil || o.Program.StateErr != nil
	if state != nil {
		ctx = context.WithoutCancel(ctx)
	} else if err := checkNode(*c, log); err != nil {
		return nil, err
	} else {
		state = &handover.State{}
	}

	r := &Rank{program: o.Program, log: log, failed: make(chan error, 1)}
	if r.levels, err = openLevels(*c, o.SlurmJob, state, successor, log); err != nil {
		return nil, err
	}
	if o.HandleFaults != nil {
		o.HandleFaults(r.levels.arena.faulted)
	}
	if r.store, err = openStore(ctx, c, r.levels, state, log); err != nil {
		return nil, err
	}
	r.settings = newSettings(r.store, o.Config, o.Password)

	r.work = &background{}
	r.work.ctx, r.work.stop = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close(ctx))
			r.levels.arena.abandon()
		}
	}()
	r.adopter = newAdopter(r.store, c.Rank, log)
	r.watch(c, o.ArenaLost)
	if c.Peers.Fabric != "off" {
		r.peers, err = peers.Join(ctx, peers.Options{
			Config: *c, Store: r.store, Seeds: state.Seeds, Log: log,
			Changed:  func(ranks int) { r.settings.resize(ranks); r.adopter.wake() },
			Replaced: func() { r.fail(ErrReplaced) },
		})
		if err != nil {
			return nil, err
		}
	}
	r.adopter.node = r.node()
	r.adopter.start(c, r.work)
	r.server, err = server.New(server.Options{
		Store: r.store, Node: r.node(), Socket: c.Socket, Listen: c.Listen, Admin: c.Admin.Listen, AllowUIDs: c.AllowUIDs,
		Version: buildinfo.Version(), Limits: serverLimits(*c, o.Password, openFiles(*c, log)), Log: log,
		ZeroCopy: c.Resp.ByReference == "auto" && c.Peers.Fabric != "mpi", // a network adapter may know the memory by its address
		Spin:     c.Resp.Spin.Std(), Inherited: o.Program.State, Upgrade: r.upgrade, Config: r.settings.texts, Rings: r.levels.rings(),
	})
	if err != nil {
		return nil, err
	}
	r.program.State = nil
	return r, nil
}

// openStore opens the store on the levels, or closes them.
func openStore(ctx context.Context, c *config.Config, l *levels, state *handover.State, log *slog.Logger) (*cascade.Store, error) {
	o := cascade.Options{
		FirstEvent: state.NextEvent + 1,
		Policy:     c.Policy, IDBits: c.IDBits, SkipVerify: !c.VerifyReads, Limits: storeLimits(*c, 1), Log: log,
	}
	l.into(&o)
	store, err := cascade.Open(ctx, o)
	if err != nil { // it has closed the tiers
		l.arena.abandon()
		return nil, errors.Join(err, l.closeBuffers())
	}
	if st := store.Stats(); st.Recovered.Blocks+st.Spilled.Blocks > 0 {
		log.Info("recovered", "blocks", st.Recovered.Blocks, "names", st.Recovered.Names, "bytes", st.Recovered.Bytes, "indexed_blocks", st.Spilled.Blocks)
	}
	return store, nil
}

// watch begins what looks after the tiers in the background.
func (r *Rank) watch(c *config.Config, arenaLost func(error)) {
	r.work.Go(func() {
		err := r.levels.arena.watch(r.work.ctx)
		switch {
		case err == nil:
		case arenaLost != nil:
			arenaLost(err)
		default:
			r.fail(err)
		}
	})
	if disks := r.levels.nvme; disks != nil {
		r.work.Go(func() { watchNVMe(r.work.ctx, disks, r.log) })
	}
	cold := r.levels.cold
	if cold == nil {
		return
	}
	w := &coldWatch{cold: cold, adopt: r.adopter.wake, log: r.log}
	w.begin()
	r.work.Go(func() { w.run(r.work.ctx) })
	if c.Lustre.IndexTuning == "auto" {
		r.work.Go(func() { tuneIndex(r.work.ctx, cold, r.log) })
	}
}

// Store returns the rank's store, which the rank owns.
func (r *Rank) Store() *cascade.Store { return r.store }

// Server returns the rank's server, which the rank owns.
func (r *Rank) Server() *server.Server { return r.server }

// node is nil for a rank that is alone.
func (r *Rank) node() *dht.Node {
	if r.peers == nil {
		return nil
	}
	return r.peers.Node()
}

// fail ends the rank for an error that it can not go on with.
func (r *Rank) fail(err error) {
	select {
	case r.failed <- err:
	default:
	}
}

// Serve answers clients until Shutdown, then returns nil. Errors: ErrReplaced, that
// of an upgrade which could not be taken back, and what ended the server.
func (r *Rank) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-r.failed:
			stop(err)
		case <-ctx.Done():
		}
	}()
	err := r.server.Serve(ctx)
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// Reload replaces the values of the configuration that may change, and the password.
func (r *Rank) Reload(c config.Config, password string) {
	r.settings.replace(c, password)
	r.server.SetLimits(serverLimits(c, password, openFiles(c, r.log)))
	r.server.Reloaded()
}

// ReloadFailed notes in the metrics that the configuration on disk was refused.
func (r *Rank) ReloadFailed() { r.server.ReloadFailed() }

// Shutdown ends the rank: it writes dirty blocks to lustre until ctx ends, and
// returns why not all could be written. It waits for an upgrade that has begun,
// which lets the next program end.
func (r *Rank) Shutdown(ctx context.Context) error {
	r.ending.Lock()
	defer r.ending.Unlock()
	if r.peers != nil {
		r.peers.Ending()
	}
	err := r.server.Shutdown(ctx)
	var drained error
	if r.peers != nil {
		_, drained = r.store.Drain(ctx) // other ranks can read it in the shared file system from now on
		r.peers.Leave(ctx)
	}
	blocks := r.levels.arena.tier.Usage().Blocks
	drained = errors.Join(drained, r.close(ctx))
	c, _ := r.settings.get()
	r.levels.arena.end(c, r.store.Stats(), blocks, drained)
	return errors.Join(err, drained)
}

// close ends what is open beside the server: the store before the peers it uses.
func (r *Rank) close(ctx context.Context) error {
	r.work.end()
	err := r.store.Close(ctx)
	if r.peers != nil {
		if failed := r.peers.Close(); failed != nil { // no failure of the drain
			r.log.Warn("the connection to the other ranks does not end in good order", "err", failed)
		}
	}
	return errors.Join(err, r.levels.closeBuffers())
}
