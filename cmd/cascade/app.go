package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"cascadekv/cmd/cascade/arenas"
	"cascadekv/cmd/cascade/campaigns"
	"cascadekv/cmd/cascade/drain"
	"cascadekv/cmd/cascade/launcher"
	"cascadekv/cmd/cascade/traces"
	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/resp"
)

const defaultTimeout = 10 * time.Second

// app is what the verbs share. It is used by one goroutine.
type app struct {
	in        io.Reader
	out, err  io.Writer
	env       []string
	systemDir string
	shmDir    string                                      // of in-process arenas
	exec      func(path string, args, env []string) error // replaces this program

	json    bool
	file    string
	socket  string
	timeout time.Duration
}

// config loads the configuration that a rank started here would have.
func (a *app) config() (*config.Loaded, error) {
	return config.Load(config.Sources{SystemDir: a.systemDir, File: a.file, Env: a.env})
}

// address returns where the rank listens: network and address as for net.Dial.
func (a *app) address(c *config.Config) (network, address string) {
	switch {
	case strings.Contains(a.socket, "/"):
		return "unix", a.socket
	case strings.Contains(a.socket, ":"):
		return "tcp", a.socket
	case a.socket != "":
		return "unix", a.socket
	case c.Socket != "":
		return "unix", c.Socket
	}
	return "tcp", c.Listen
}

// dial connects to the rank and authenticates when a password is configured.
// The caller closes the client.
func (a *app) dial() (*resp.Client, error) {
	loaded, err := a.config()
	if err != nil {
		return nil, err
	}
	client, err := a.dialWith(loaded)
	if err != nil {
		a.warn(loaded.Warnings) // one may be why it was looked for elsewhere
	}
	return client, err
}

func (a *app) dialWith(loaded *config.Loaded) (*resp.Client, error) {
	if a.timeout <= 0 {
		return nil, cli.Usagef("--timeout %v: it must be above 0", a.timeout)
	}
	password, err := loaded.Password()
	if err != nil {
		return nil, err
	}
	network, address := a.address(&loaded.Config)
	client, err := resp.Dial(network, address, a.timeout, loaded.ServerUIDs...)
	if errors.Is(err, resp.ErrForeignServer) {
		return nil, err
	}
	if err != nil {
		return nil, explain(network, address, err)
	}
	if password != "" {
		if _, err := client.Do("AUTH", password); err != nil {
			client.Close()
			return nil, fmt.Errorf("the rank at %s refuses the password of password_file: %w", address, err)
		}
	}
	return client, nil
}

// traceTool is this program for the verbs below trace.
func (a *app) traceTool() *traces.Tool {
	return &traces.Tool{
		Out: a.out, Err: a.err, ShmDir: a.shmDir, JSON: &a.json, Socket: &a.socket,
		Config: a.config, Address: a.address, Dial: a.dial, Refused: refused,
	}
}

// campaignTool is this program for the verbs on what lies on Lustre.
func (a *app) campaignTool() *campaigns.Tool {
	return &campaigns.Tool{In: a.in, Out: a.out, Err: a.err, JSON: &a.json, Config: a.config}
}

// arenaTool is this program for the verb arena.
func (a *app) arenaTool() *arenas.Tool {
	return &arenas.Tool{Out: a.out, JSON: &a.json, ShmDir: a.shmDir, Config: a.config}
}

// drainTool is this program for the verb drain.
func (a *app) drainTool() *drain.Tool {
	return &drain.Tool{Out: a.out, Err: a.err, JSON: &a.json, Config: a.config, Address: a.address,
		Dial: func(c *config.Loaded, timeout time.Duration) (*resp.Client, error) {
			a.timeout = timeout
			return a.dialWith(c)
		}}
}

// launchTool is this program for the verb launch.
func (a *app) launchTool() *launcher.Tool {
	return &launcher.Tool{
		In: a.in, Out: a.out, Err: a.err, Env: a.env, JSON: &a.json, Socket: &a.socket, File: &a.file, Engine: settingsOf,
		Load: func(flags map[string]string) (*config.Loaded, error) {
			return config.Load(config.Sources{SystemDir: a.systemDir, File: a.file, Env: a.env, Flags: flags})
		},
	}
}

// refused explains what a rank's error means for the person at the keyboard.
func refused(verb string, err error) error {
	var server *resp.ServerError
	if errors.As(err, &server) && server.Code() == "NOAUTH" {
		return fmt.Errorf("%s: %w; set password_file in the configuration or CASCADE_PASSWORD_FILE", verb, err)
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// ask has a rank answer a verb's question, in JSON, which is read into v.
func ask(client *resp.Client, verb string, v any, question ...string) (text []byte, err error) {
	reply, err := client.Do(question...)
	if err != nil {
		return nil, refused(verb, err)
	}
	if err := json.Unmarshal(reply.Str, v); err != nil {
		return nil, fmt.Errorf("%s: the answer to %s is not a rank's: %w; is this a cascaded of the same version?", verb, question[0], err)
	}
	return reply.Str, nil
}

// printJSON writes v on standard output.
func (a *app) printJSON(v any) error { return cli.PrintJSON(a.out, v) }

// show writes v as JSON, or lets print write it for people.
func (a *app) show(v any, print func() error) error {
	return cli.Show(a.out, a.json, v, print)
}

// table writes rows in columns; the first row is the head.
func (a *app) table(rows [][]string) error { return cli.PrintTable(a.out, rows) }

// progress returns a bar on standard error; it draws nothing unless that is a
// terminal. A negative total means unknown.
func (a *app) progress(total int64, what string, bytes bool) *progressbar.ProgressBar {
	return cli.Progress(a.err, total, what, bytes)
}
