package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cascadekv/cascade"
	"cascadekv/dht"
	"cascadekv/dht/fabric"
	"cascadekv/dht/fabric/tcp"
	"cascadekv/dht/members"
	"cascadekv/dht/ring"
	"cascadekv/internal/config"
)

// peers is a rank's connection to the others.
type peers struct {
	node    *dht.Node
	members *members.Members

	replaced chan struct{} // closed when another process took this rank's number
	once     sync.Once
}

// joinPeers makes store one of many.
func joinPeers(ctx context.Context, c config.Config, store *cascade.Store, log *slog.Logger) (*peers, error) {
	secret, err := c.Peers.Secret()
	if err != nil {
		return nil, err
	}
	self := members.Member{Rank: fabric.Rank(c.Rank), Incarnation: uint64(time.Now().UnixNano())}
	if self.Host, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("the node's name: %w", err)
	}
	fab, err := openFabric(c, self, secret, log)
	if err != nil {
		return nil, err
	}
	p := &peers{replaced: make(chan struct{})}
	// The node is told of members only after they are there, but tells of its
	// calls to them from other goroutines.
	var gossip atomic.Pointer[members.Members]
	p.node, err = dht.New(dht.Options{
		Fabric: fab, Incarnation: self.Incarnation, Replicas: c.Peers.Homes, Log: log,
		Answered: func(r fabric.Rank) {
			if m := gossip.Load(); m != nil {
				m.Answered(r)
			}
		},
		Unanswered: func(r fabric.Rank, err error) {
			if m := gossip.Load(); m != nil {
				m.Suspect(r, err)
			}
		},
	}, cascade.Local{Store: store})
	if err != nil {
		return nil, errors.Join(err, fab.Close())
	}
	self.Addr = fab.Addr()
	p.members, err = members.Start(ctx, members.Options{
		Self: self, Bind: c.Peers.Gossip, Advertise: advertised(c.Peers.Gossip, c.Peers.Advertise),
		Job: jobName(c), Secret: []byte(secret), Placement: ring.Version, Seeds: c.Peers.SeedList(),
		Log: log, OnChange: p.changed,
	})
	if err != nil {
		return nil, errors.Join(err, p.node.Close())
	}
	gossip.Store(p.members)
	store.Join(p.node)
	log.Info("joined", "rank", c.Rank, "fabric", fab.Name(), "addr", fab.Addr(), "gossip", p.members.Addr())
	return p, nil
}

func openFabric(c config.Config, self members.Member, secret string, log *slog.Logger) (fabric.Fabric, error) {
	if c.Peers.Fabric == "mpi" {
		return openMPI(c)
	}
	return tcp.New(tcp.Options{
		Self: self.Rank, Incarnation: self.Incarnation, Listen: c.Peers.Listen,
		Advertise: advertised(c.Peers.Listen, c.Peers.Advertise), Job: jobName(c), Secret: []byte(secret), Placement: ring.Version,
		Observe: func(err error) { log.Warn("connection of another rank", "err", err) },
	})
}

// jobName tells jobs apart that share a secret.
func jobName(c config.Config) string {
	if c.Job == "" {
		return "cascade"
	}
	return c.Job
}

// advertised is the host others are told: what is configured, or the node's
// name when listening everywhere; "" leaves it to the address itself.
func advertised(listen, configured string) string {
	if configured != "" {
		return configured
	}
	if host, _, err := net.SplitHostPort(listen); err != nil || host != "" {
		return ""
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// changed passes an event of the membership on.
func (p *peers) changed(e members.Event) {
	m := e.Member
	if m.Rank == p.node.Self() {
		if e.Kind == members.Replaced {
			p.once.Do(func() { close(p.replaced) })
		}
		return
	}
	p.node.SetMember(dht.Member{Rank: m.Rank, Incarnation: m.Incarnation, Host: m.Host, Addr: m.Addr, State: m.State})
}

// leave tells the others that this rank goes, once they know where its blocks
// lie.
func (p *peers) leave(ctx context.Context) error {
	p.node.Settled(ctx.Done())
	return p.members.Leave(ctx)
}

func (p *peers) close() error { return errors.Join(p.members.Close(), p.node.Close()) }
