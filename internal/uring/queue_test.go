package uring

import (
	"testing"
)

// kernel is the other side of both queues, in ordinary memory: it takes
// submissions in order and answers each with its user value.
type kernel struct {
	sq                             submissions
	cq                             completions
	sqHead, sqTail, cqHead, cqTail uint32
	done                           []uint64 // answers that did not fit yet
}

func newKernel(entries, start uint32) *kernel {
	k := &kernel{sqHead: start, sqTail: start, cqHead: start, cqTail: start}
	k.sq = submissions{head: &k.sqHead, tail: &k.sqTail, mask: entries - 1, array: make([]uint32, entries), entries: make([]submission, entries)}
	k.cq = completions{head: &k.cqHead, tail: &k.cqTail, mask: 2*entries - 1, entries: make([]completion, 2*entries)}
	return k
}

func (k *kernel) work(n int) {
	for ; n > 0 && k.sqHead != k.sqTail; n-- {
		k.done = append(k.done, k.sq.entries[k.sq.array[k.sqHead&k.sq.mask]].user)
		k.sqHead++
	}
	for len(k.done) > 0 && k.cqTail-k.cqHead <= k.cq.mask {
		k.cq.entries[k.cqTail&k.cq.mask] = completion{user: k.done[0]}
		k.cqTail++
		k.done = k.done[1:]
	}
}

// FuzzQueues drives both queues with any mixture of steps, from counters that
// are about to wrap too, against a kernel that works in order: nothing is lost,
// doubled or reordered, and only a full queue refuses.
func FuzzQueues(f *testing.F) {
	f.Add(uint8(3), uint32(0), []byte("pppwwwoooppppppppppwwwooo"))
	f.Add(uint8(0), uint32(0xffffffff), []byte("ppwopwopwowwwpuuppwo"))
	f.Add(uint8(2), uint32(0xfffffff0), []byte("pppppppppppwwwwwwwwoooooooopppppppwoooowwwwwwoooowoooooowoooooopppp"))
	f.Fuzz(func(t *testing.T, size uint8, start uint32, steps []byte) {
		entries := uint32(1) << (size % 8)
		k := newKernel(entries, start)
		var pushed, popped uint64
		for _, step := range steps {
			switch step % 4 {
			case 0:
				full := k.sq.waiting() == entries
				if k.sq.push(submission{user: pushed}) == full {
					t.Fatalf("pushed into %d of %d: full %v", k.sq.waiting(), entries, full)
				}
				if !full {
					pushed++
				}
			case 1:
				k.work(int(step>>2) + 1)
			case 2:
				c, ok := k.cq.pop()
				if ok && c.user != popped {
					t.Fatalf("completion %d, want %d", c.user, popped)
				}
				if ok {
					popped++
				}
			case 3:
				next := pushed - uint64(k.sq.waiting())
				k.sq.each(func(s *submission) {
					if s.user != next {
						t.Fatalf("entry %d waits, want %d", s.user, next)
					}
					next++
				})
				if next != pushed {
					t.Fatalf("waiting entries end at %d of %d", next, pushed)
				}
			}
		}
		for range steps {
			k.work(len(steps))
			if _, ok := k.cq.pop(); ok {
				popped++
			}
		}
		if popped != pushed {
			t.Fatalf("%d completions of %d submissions", popped, pushed)
		}
	})
}
