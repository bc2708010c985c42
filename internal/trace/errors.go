package trace

import (
	"errors"
	"fmt"
)

// ErrBadTrace marks input that is not a trace. Test with errors.Is.
var ErrBadTrace = errors.New("trace: not a trace")

// LineError reports which line of which file is wrong, why, and what to do. It
// matches ErrBadTrace, and the error of the decompressor where that is the cause.
type LineError struct {
	File    string
	Line    int // counted from 1; of compressed files, in the decompressed text
	Problem string
	Remedy  string
	Err     error // cause, may be nil
}

// Error names the file, the line, the problem and the remedy.
func (e *LineError) Error() string {
	return fmt.Sprintf("trace %s, line %d: %s: %s", e.File, e.Line, e.Problem, e.Remedy)
}

// Unwrap returns ErrBadTrace and the cause.
func (e *LineError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrBadTrace}
	}
	return []error{ErrBadTrace, e.Err}
}
