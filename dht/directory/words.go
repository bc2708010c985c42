package directory

import (
	"sync"
	"sync/atomic"
)

// words number the strings that many entries share, namespaces and segment paths: an
// entry has the number. A word is forgotten when no entry uses it. It is safe for
// concurrent use.
type words struct {
	mu     sync.Mutex
	number map[string]uint32
	uses   []uint32 // by number
	unused []uint32 // numbers to be given

	text atomic.Pointer[[]string] // by number; an element changes only while nobody uses it
}

func newWords() *words {
	w := &words{number: map[string]uint32{}}
	w.text.Store(new([]string))
	return w
}

// use returns the number of a word, which the caller uses from then on.
func (w *words) use(s string) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, known := w.number[s]
	if !known {
		n = w.addLocked(s)
	}
	w.uses[n]++
	return n
}

func (w *words) addLocked(s string) uint32 {
	text := *w.text.Load()
	n := uint32(len(text))
	if last := len(w.unused) - 1; last >= 0 {
		n, w.unused = w.unused[last], w.unused[:last]
		text[n] = s
	} else {
		text = append(text, s) // those who read see the elements they use, wherever these lie
		w.text.Store(&text)
		w.uses = append(w.uses, 0)
	}
	w.number[s] = n
	return n
}

// release ends one use of each of some words.
func (w *words) release(numbers []uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range numbers {
		if w.uses[n]--; w.uses[n] == 0 {
			text := *w.text.Load()
			delete(w.number, text[n])
			text[n] = ""
			w.unused = append(w.unused, n)
		}
	}
}

// of returns the word of a number in use.
func (w *words) of(n uint32) string { return (*w.text.Load())[n] }
