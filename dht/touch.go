package dht

import (
	"slices"
	"sync"
	"time"

	"cascadekv/dht/fabric"
)

const (
	// touchDelay is how long touches gather: blocks age by minutes, so a message
	// need not be sent for each request.
	touchDelay = 100 * time.Millisecond

	// touchKeys bounds the keys of one message, which their owner looks up in one
	// go, and waitingTouches those that wait; more are dropped.
	touchKeys      = 256
	waitingTouches = 64 << 10
)

// touches are keys that were used here and that their owners have not heard of.
type touches struct {
	mu     sync.Mutex
	wait   map[touched][]string
	keys   int  // in wait
	queued bool // somebody is about to send them
}

type touched struct {
	owner     fabric.Rank
	namespace string
}

// Touch reports to the owner of blocks, without waiting, that they were used here:
// keys of one chain, head first. Under load it is dropped.
func (n *Node) Touch(owner fabric.Rank, namespace string, keys []string) {
	t := &n.touches
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys+len(keys) > waitingTouches {
		return
	}
	if t.wait == nil {
		t.wait = map[touched][]string{}
	}
	k := touched{owner, namespace}
	t.wait[k] = append(t.wait[k], keys...)
	t.keys += len(keys)
	if !t.queued {
		t.queued = n.start(n.sendTouches)
	}
}

// take returns what waits.
func (t *touches) take() map[touched][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := t.wait
	t.wait, t.keys = nil, 0
	t.queued = len(wait) > 0
	return wait
}

// sendTouches sends what gathers until nothing does any more.
func (n *Node) sendTouches() {
	for {
		n.pause(touchDelay)
		wait := n.touches.take()
		if len(wait) == 0 {
			return
		}
		for to, keys := range wait {
			for part := range slices.Chunk(keys, touchKeys) {
				_, _ = n.call(n.work, to.owner, kindTouch, &keysMessage{Namespace: to.namespace, Keys: part}) // its loss costs nothing but time
			}
		}
	}
}
