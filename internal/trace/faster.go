package trace

import "io"

// Faster is a source whose times, pauses among them, are those of src divided by times, which is
// above 0; rounded down to milliseconds. Its Close, if it has one, is that of src.
func Faster(src Source, times float64) Source {
	if times == 1 {
		return src
	}
	if c, ok := src.(io.Closer); ok {
		return struct {
			faster
			io.Closer
		}{faster{src, times}, c}
	}
	return faster{src, times}
}

type faster struct {
	Source
	times float64
}

// Next implements Source.
func (f faster) Next(r *Request) error {
	if err := f.Source.Next(r); err != nil {
		return err
	}
	r.Timestamp = int64(float64(r.Timestamp) / f.times)
	r.Pause = int64(float64(r.Pause) / f.times)
	return nil
}
