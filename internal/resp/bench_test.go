package resp

import (
	"io"
	"net"
	"testing"
	"time"
)

const benchValue = 2 << 20

// BenchmarkClientSet and its kin move 2 MiB values over a unix socket pair;
// BenchmarkRaw… move the same bytes with bare reads and writes, the ceiling.
func BenchmarkClientSet(b *testing.B) {
	c := dialPair(b, time.Minute)
	value := make([]byte, benchValue)
	b.SetBytes(benchValue)
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Set("k", value); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkClientGet(b *testing.B) {
	c := dialPair(b, time.Minute)
	dst := make([]byte, benchValue)
	if err := c.Set("k", dst); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(benchValue)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Get("k", dst); err != nil {
			b.Fatal(err)
		}
	}
}

// echo answers n bytes with m bytes, for ever.
func echo(c net.Conn, n, m int) {
	in, out := make([]byte, n), make([]byte, m)
	for {
		if _, err := io.ReadFull(c, in); err != nil {
			return
		}
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

func benchRaw(b *testing.B, send, receive int) {
	x, y := pair(b)
	go echo(y, send, receive)
	out, in := make([]byte, send), make([]byte, receive)
	b.SetBytes(benchValue)
	for b.Loop() {
		if _, err := x.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(x, in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRawSet(b *testing.B) { benchRaw(b, benchValue, 5) }
func BenchmarkRawGet(b *testing.B) { benchRaw(b, 25, benchValue) }

func BenchmarkReaderSmallCommands(b *testing.B) {
	one := command("EXISTS", "model@1@0@0123456789abcdef@bfloat16kv_bytes")
	x, y := pair(b)
	go func() {
		batch := []byte{}
		for range 200 {
			batch = append(batch, one...)
		}
		for {
			if _, err := y.Write(batch); err != nil {
				return
			}
		}
	}()
	r := NewReader(x)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.Next(nil); err != nil {
			b.Fatal(err)
		}
	}
}
