package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// refusalPatience bounds how long a refused client is waited for, to read why,
	// and maxRefusals how many are at a time; more are just closed.
	refusalPatience = time.Second
	maxRefusals     = 16

	// headerPatience bounds how long a client takes to send a request's header.
	headerPatience = 10 * time.Second
)

// Options are what the HTTP side shows, and who may see it. The functions may be
// called from any goroutine.
type Options struct {
	Snapshot func() Snapshot
	Counters func() Counters
	Draining func() bool // the server takes no more clients

	// Admit returns nil for a client that may use the HTTP side. There is no
	// password, so that users of this machine alone should come in.
	Admit func(nc net.Conn) error
}

// Server serves HTTP. Its methods are safe for concurrent use.
type Server struct {
	o        Options
	conns    httpConns
	refusals chan struct{} // clients that are being refused; capacity maxRefusals
}

// New returns a server of what o shows.
func New(o Options) *Server {
	return &Server{o: o, refusals: make(chan struct{}, maxRefusals)}
}

// Serve answers the clients of a listener until that fails, and returns its error.
func (s *Server) Serve(l net.Listener) error {
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerPatience, ConnState: s.conns.track}
	return h.Serve(admitting{l, s})
}

// Busy reports whether a client is in a request, or about to be.
func (s *Server) Busy() bool { return s.conns.any() }

// Handler serves /metrics, /healthz, /stats and profiles.
func (s *Server) Handler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{s.o}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s.o.Draining() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("/stats", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.o.Snapshot())
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

// admitting is a listener for those who may use the HTTP side.
type admitting struct {
	net.Listener
	srv *Server
}

// Accept implements net.Listener.
func (a admitting) Accept() (net.Conn, error) {
	for {
		nc, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if a.srv.o.Admit(nc) == nil {
			return nc, nil
		}
		select {
		case a.srv.refusals <- struct{}{}:
			go func() {
				refuse(nc, http.StatusForbidden, "this rank serves its own user, root and the users of allow_uids")
				<-a.srv.refusals
			}()
		default:
			_ = nc.Close()
		}
	}
}

// refuse answers a client before its request is read, and closes. The
// request is read so far that the client is not reset before it has the answer.
func refuse(nc net.Conn, status int, why string) {
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(refusalPatience))
	if _, err := io.WriteString(nc, Refusal(status, why)); err != nil {
		return
	}
	if half, ok := nc.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, nc, 64<<10)
	}
}

// Refusal returns a whole answer of HTTP, the last one of its connection.
func Refusal(status int, why string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s\n",
		status, http.StatusText(status), len(why)+1, why)
}

// httpConns are the connections of HTTP that are in a request, or about to be.
type httpConns struct {
	mu struct {
		sync.Mutex
		active map[net.Conn]struct{}
	}
}

// track is for http.Server.ConnState. A new connection is seen before the listener
// is asked for another one.
func (h *httpConns) track(nc net.Conn, st http.ConnState) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if st == http.StateNew || st == http.StateActive {
		if h.mu.active == nil {
			h.mu.active = map[net.Conn]struct{}{}
		}
		h.mu.active[nc] = struct{}{}
	} else {
		delete(h.mu.active, nc)
	}
}

func (h *httpConns) any() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.active) > 0
}
