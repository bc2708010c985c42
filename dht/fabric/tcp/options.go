package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"cascadekv/dht/fabric"
)

// MinSecret is the least length of a secret, in bytes. The handshake lets
// anybody who reaches the port try secrets at home, so it must not be guessable.
const MinSecret = 16

// MaxJob is the greatest length of a job's name, in bytes.
const MaxJob = 63

// Options say who a rank is and how it is reached.
type Options struct {
	Self        fabric.Rank
	Incarnation uint64

	// Listen is the host and port to listen on; port 0 takes a free one.
	Listen string

	// Advertise is the host, or host and port, that others are given. It is
	// needed when Listen names no host.
	Advertise string

	// Job names the job and Secret is known to its ranks only: at least
	// MinSecret bytes. Ranks of another job or with another secret are refused.
	// The fabric keeps no reference to Secret.
	Job    string
	Secret []byte

	// Placement is the version of the ring's placement; ranks of another one
	// would look for keys elsewhere, so they are refused.
	Placement uint32

	// Authority makes credentials for the user of the job's ranks: a
	// munge.Client. Ranks that both have one ask it of each other, beside the
	// secret. Nil: none. RequireAuthority refuses ranks without one.
	Authority        Authority
	RequireAuthority bool

	// Streams is how many reads from one peer run at the same time; 0 means the
	// constant Streams.
	Streams int

	// Requests is how many calls of one peer are handled at the same time;
	// 0 means 128. What is beyond waits.
	Requests int

	// OpenTimeout bounds the opening of a stream, and how long somebody who
	// opened one here may take to prove who they are; 0 means 3 s. It is less
	// where many who did not prove it have connections open.
	OpenTimeout time.Duration

	// Observe is called with each error of a stream that others opened, a
	// *StreamError (strangers, broken frames), and of accepting one. It is
	// called concurrently, as often as strangers like, and must return soon.
	// Nil: nobody.
	Observe func(error)
}

// Authority vouches for the user that runs this process. It is used
// concurrently.
type Authority interface {
	// Sign returns a credential for a payload of 32 bytes: at most 1 KiB.
	Sign(ctx context.Context, payload []byte) ([]byte, error)

	// Verify is nil if this process's user made the credential, elsewhere, for
	// the payload. A munge.ErrRefused is final, other errors may pass.
	Verify(ctx context.Context, credential, payload []byte) error
}

// Streams is how many streams for payloads a rank opens to a peer by default.
const Streams = 3

const (
	defaultRequests = 128
	defaultTimeout  = 3 * time.Second

	// silence is after how long without an acknowledgement the kernel gives a
	// stream up. Operations end at their own deadlines, which are sooner.
	silence = 15 * time.Second

	// sendLimit bounds the sending of one payload, and with it the time for
	// which a slow peer can pin memory.
	sendLimit = 60 * time.Second

	// stallLimit bounds the sending of what is queued on a stream of calls.
	stallLimit = 10 * time.Second

	// closePatience bounds Close.
	closePatience = 5 * time.Second

	// halfOpen is how many openers may be in the handshake, and not have proved
	// that they know the secret, at the same time. More push out the oldest of
	// the network that has most.
	halfOpen = 256

	// greetingLimit is how long an opener may take to greet while more than
	// half of halfOpen are in the handshake. Without that many, a slow machine
	// has all of OpenTimeout.
	greetingLimit = 300 * time.Millisecond

	// vouchers is how many openers that know the secret the authority is asked
	// about at the same time. It starts programs.
	vouchers = 16

	// inbound is how many streams one peer may have open to us: a few times
	// what it needs, since the end of an old one may be noticed late.
	inbound = 64

	// idleMost is how many payload streams are kept for the next read, to all peers
	// together: one for each rank of a large job. For one more the one that nobody used
	// for longest is closed.
	idleMost = 1024

	// waiting is how many threads may wait in the kernel for payloads.
	waiting = 256

	// lingerers is how many may wait there for the next read of a peer.
	lingerers = 16

	// errorText bounds the text of an error that travels, in bytes.
	errorText = 4 << 10
)

// complete fills defaults in and refuses what can not work.
func (o *Options) complete() error {
	switch {
	case len(o.Secret) < MinSecret:
		return fmt.Errorf("tcp: the secret has %d bytes; give it at least %d random ones", len(o.Secret), MinSecret)
	case len(o.Job) > MaxJob:
		return fmt.Errorf("tcp: the job's name has %d bytes; %d is the most", len(o.Job), MaxJob)
	case o.RequireAuthority && o.Authority == nil:
		return errors.New("tcp: an authority is required, and there is none")
	case o.Streams < 0 || o.Streams > inbound/2 || o.Requests < 0 || o.OpenTimeout < 0:
		return fmt.Errorf("tcp: %d streams, %d requests, timeout %v: must be positive, streams at most %d",
			o.Streams, o.Requests, o.OpenTimeout, inbound/2)
	}
	if o.Streams == 0 {
		o.Streams = Streams
	}
	if o.Requests == 0 {
		o.Requests = defaultRequests
	}
	if o.OpenTimeout == 0 {
		o.OpenTimeout = defaultTimeout
	}
	if o.Observe == nil {
		o.Observe = func(error) {}
	}
	return nil
}

// advertised is the address that others are given.
func (o *Options) advertised(listening net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return "", fmt.Errorf("tcp: the address %v: %w", listening, err)
	}
	if o.Advertise != "" {
		if _, _, err := net.SplitHostPort(o.Advertise); err == nil {
			return o.Advertise, nil
		}
		return net.JoinHostPort(o.Advertise, port), nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "", errors.New("tcp: listening on all addresses, which one should others use? name a host in Listen or Advertise")
	}
	return net.JoinHostPort(host, port), nil
}
