package testlog

import (
	"bytes"
	"strings"
	"sync"
)

// Log keeps what is written to it. The zero value is empty; all methods are safe
// for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer. It never fails.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has reports whether a piece of text was written.
func (l *Log) Has(piece string) bool { return strings.Contains(l.String(), piece) }

// Lines returns the lines with a piece of text in them, in their order.
func (l *Log) Lines(piece string) (all []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, piece) {
			all = append(all, line)
		}
	}
	return all
}
