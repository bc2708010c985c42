package fromtext

import (
	"crypto/sha256"
	"unicode/utf8"
)

// digest stands for the text of a prompt up to the end of a block.
type digest [16]byte

// session is a conversation whose requests have not all come.
type session struct {
	name   string
	blocks []digest // whole blocks, head first
	turns  []turn   // that are left
}

// turn is one request.
type turn struct {
	tokens, output int
	whole          int      // of the session's blocks, that belong to the prompt
	shared         int      // of these, that belong to a shared prompt
	own            []digest // whole blocks behind them that no other turn has
	last           digest
	partial        bool // last is the block behind the whole ones
}

// chain cuts text into blocks.
type chain struct {
	o       *Options
	chars   int64
	pending []byte // text of the block that is not whole
	sealed  []digest
}

// end is the character at which the block behind the sealed ones ends.
func (c *chain) end() int64 {
	return int64(len(c.sealed)+1) * int64(c.o.BlockTokens) * c.o.milli() / 1000
}

func (c *chain) write(text string) {
	for len(text) > 0 {
		n, room := 0, c.end()-c.chars
		for ; room > 0 && n < len(text); room-- {
			_, size := utf8.DecodeRuneInString(text[n:])
			n += size
			c.chars++
		}
		c.pending = append(c.pending, text[:n]...)
		text = text[n:]
		if room == 0 {
			c.sealed = append(c.sealed, c.digest())
			c.pending = c.pending[:0]
		}
	}
}

// digest is that of the text so far.
func (c *chain) digest() (d digest) {
	h := sha256.New()
	if n := len(c.sealed); n > 0 {
		h.Write(c.sealed[n-1][:])
	}
	h.Write(c.pending)
	copy(d[:], h.Sum(nil))
	return d
}

// turn is a request with the text so far as its prompt.
func (c *chain) turn(answer string, shared int) turn {
	t := turn{tokens: c.o.tokens(c.chars), output: c.o.tokens(int64(utf8.RuneCountInString(answer))), whole: len(c.sealed), shared: shared}
	if t.partial = len(c.pending) > 0; t.partial {
		t.last = c.digest()
	}
	return t
}

// milli is the length of a token in thousandths of a character, so that the
// ends of blocks are whole numbers on any machine.
func (o *Options) milli() int64 { return int64(o.CharsPerToken*1000 + 0.5) }

// tokens estimates the length of so many characters.
func (o *Options) tokens(chars int64) int {
	return int((chars*1000 + o.milli() - 1) / o.milli())
}
