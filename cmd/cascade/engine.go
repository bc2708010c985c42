package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"cascadekv/internal/cli"
	"cascadekv/internal/config"
	"cascadekv/internal/units"
)

// engineConfig is what someone pastes to have an engine use a rank.
type engineConfig struct {
	Engine string            `json:"engine"`
	Env    map[string]string `json:"env"`             // of the engine's processes
	Args   []string          `json:"args"`            // of its command line
	Config any               `json:"config"`          // the object among Args, by itself
	Files  map[string]string `json:"files,omitempty"` // by name: for the ways that need one
	Other  []string          `json:"other,omitempty"` // command lines of other ways
	Notes  []string          `json:"notes"`

	command string // that Args follow
}

// engineOptions are the flags of engine-config.
type engineOptions struct {
	socket   string // of the rank, absolute
	listen   string // its host:port, "" for none
	pageSize int
	hostPool units.Bytes
}

// engines are those of engine-config.
var engines = map[string]func(engineOptions) engineConfig{
	"sglang":  sglangConfig,
	"vllm":    vllmConfig,
	"lmcache": lmcacheConfig,
}

func (a *app) engineConfigCommand() *cobra.Command {
	o := engineOptions{pageSize: 64, hostPool: 8 * units.GiB}
	c := &cobra.Command{
		Use:   "engine-config sglang|vllm|lmcache",
		Short: "Print what to paste so that an engine uses the rank of this node",
		Long: "Print what to paste so that an engine uses the rank of this node: environment, command line and files, with\n" +
			"the rank's address from the configuration or --socket. The engine needs the Python package of clients/python.",
		Args:      cli.Arity(1, 1),
		ValidArgs: []string{"sglang", "vllm", "lmcache"},
		RunE: func(_ *cobra.Command, args []string) error {
			of, known := engines[args[0]]
			if !known {
				return cli.Usagef("engine-config: %q is not an engine that is known here; choose sglang, vllm or lmcache", args[0])
			}
			return a.engineConfig(of, o)
		},
	}
	c.Flags().IntVar(&o.pageSize, "page-size", o.pageSize, "tokens of an SGLang page")
	c.Flags().Var(&o.hostPool, "host-pool", "memory of vLLM's primary tier, or of LMCache's L1, in /dev/shm")
	return c
}

func (a *app) engineConfig(of func(engineOptions) engineConfig, o engineOptions) error {
	loaded, err := a.config()
	if err != nil {
		return err
	}
	network, address := a.address(&loaded.Config)
	if network != "unix" {
		return cli.Usagef("engine-config: engines hand their memory to the rank through its unix socket, and none is configured; set socket, or give --socket PATH")
	}
	if o.socket, err = filepath.Abs(address); err != nil {
		return err
	}
	o.listen = loaded.Listen
	e := of(o)
	e.trust(&loaded.Config)
	if e.Engine != "sglang" { // its host pool is no file
		e.Notes = append(e.Notes, a.shmNote(o.hostPool))
	}
	return a.show(e, func() error { return a.printEngineConfig(e) })
}

// trust has the engine trust whom the configuration does.
func (e *engineConfig) trust(c *config.Config) {
	k, _ := config.Lookup("server_uids")
	if len(c.ServerUIDs) > 0 {
		e.Env[k.Env()] = k.Text(c)
	}
	e.Notes = append(e.Notes, "the engine sends nothing to a rank of another user than its own or root, unless "+k.Path+" lists that user ("+k.Env()+")")
}

// shmNote compares the room that is left in shared memory with what an engine
// takes of it.
func (a *app) shmNote(need units.Bytes) string {
	var s unix.Statfs_t
	if err := unix.Statfs(a.shmDir, &s); err != nil {
		return fmt.Sprintf("%s of %s are taken when the engine starts; how much is free there is not known: %v", need.Human(), a.shmDir, err)
	}
	free := s.Bavail * uint64(s.Bsize)
	note := fmt.Sprintf("%s of %s are taken when the engine starts, beside the rank's arena; %s are free now", need.Human(), a.shmDir, cli.Human(int64(free)))
	if free < uint64(need) {
		note += ": TOO FEW, choose a smaller --host-pool or shm.bytes"
	}
	return note
}

// printEngineConfig writes a shell script with comments.
func (a *app) printEngineConfig(e engineConfig) error {
	var b strings.Builder
	for _, n := range e.Notes {
		fmt.Fprintf(&b, "# %s\n", n)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Env)) {
		fmt.Fprintf(&b, "export %s=%s\n", k, cli.ShellQuote(e.Env[k]))
	}
	fmt.Fprintf(&b, "%s", e.command)
	for _, arg := range e.Args {
		if strings.HasPrefix(arg, "--") {
			b.WriteString(" \\\n ")
		}
		b.WriteString(" " + cli.ShellQuote(arg))
	}
	b.WriteString("\n")
	for _, name := range slices.Sorted(maps.Keys(e.Files)) {
		fmt.Fprintf(&b, "\n# %s:\n%s", name, e.Files[name])
	}
	for _, line := range e.Other {
		fmt.Fprintf(&b, "\n# or, without the Python package:\n# %s\n", line)
	}
	_, err := a.out.Write([]byte(b.String()))
	return err
}

// compact is v as JSON for a command line.
func compact(v any) string {
	p, err := json.Marshal(v)
	if err != nil {
		return "{}" // v is made of strings and numbers here
	}
	return string(p)
}

// settingsOf returns the variables of an engine beside a rank, and LMCache's file: what
// cascade launch gives to the engine that it runs. Those with an object are named like
// the flags that take it.
func settingsOf(c *config.Loaded, hostPool units.Bytes) (env map[string]string, lmcache string) {
	o := engineOptions{socket: c.Socket, hostPool: hostPool}
	vllm, l := vllmConfig(o), lmcacheConfig(o)
	vllm.trust(&c.Config)
	env = vllm.Env
	env["CASCADE_SOCKET"] = c.Socket
	env["KV_TRANSFER_CONFIG"] = compact(vllm.Config)
	env["HICACHE_STORAGE_BACKEND_EXTRA_CONFIG"] = compact(sglangConfig(o).Config)
	return env, l.Files["lmcache.yaml"]
}

const installNote = "the engine's Python needs the package once: pip install clients/python"

func sglangConfig(o engineOptions) engineConfig {
	config := map[string]any{
		"backend_name": "cascade", "module_path": "cascade_kv.sglang", "class_name": "CascadeHiCache",
		"interface_v1": 1, "allocator": "shm", "hicache_storage_pass_prefix_keys": true, "socket": o.socket,
	}
	return engineConfig{
		Engine:  "sglang",
		command: "sglang serve --model-path MODEL",
		Env:     map[string]string{},
		Args: []string{"--page-size", fmt.Sprint(o.pageSize), "--enable-hierarchical-cache", "--hicache-ratio", "2", "--hicache-mem-layout", "page_first",
			"--hicache-storage-backend", "dynamic", "--hicache-storage-backend-extra-config", compact(config)},
		Config: config,
		Notes: []string{
			installNote,
			"interface_v1 and allocator let the rank copy pages itself; without them each page is copied by Python once more",
			"the configuration must be inline: SGLang does not share its host pool when it is read from @file",
			"engines share pages only if model, weights, layout, page size and parallelism are the same: docs/sglang.md lists all",
		},
	}
}

func vllmConfig(o engineOptions) engineConfig {
	config := map[string]any{
		"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
		"kv_connector_extra_config": map[string]any{
			"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": int64(o.hostPool),
			"secondary_tiers": []any{map[string]any{"type": "CascadeTier", "module_path": "cascade_kv.vllm", "socket": o.socket}},
		},
	}
	return engineConfig{
		Engine:  "vllm",
		command: "vllm serve MODEL",
		Env:     map[string]string{"PYTHONHASHSEED": "0"},
		Args:    []string{"--kv-transfer-config", compact(config)},
		Config:  config,
		Notes: []string{
			installNote,
			"every engine that is to share blocks needs the same PYTHONHASHSEED and --prefix-caching-hash-algo; revision and quantization of the weights are not distinguished unless the tier has a \"tenant\"",
			"without a GPU: \"spec_name\": \"CpuPlatformTieringSpec\", \"spec_module_path\": \"cascade_kv.vllm\"",
		},
	}
}

func lmcacheConfig(o engineOptions) engineConfig {
	config := map[string]any{
		"type": "plugin", "module_path": "cascade_kv.lmcache", "class_name": "CascadeL2Adapter",
		"adapter_params": map[string]any{"socket": o.socket},
	}
	// LMCache's server does not start without these two.
	l1 := []string{"--l1-size-gb", fmt.Sprint(max(1, int64(o.hostPool/units.GiB))), "--eviction-policy", "LRU"}
	e := engineConfig{
		Engine:  "lmcache",
		command: "lmcache server",
		Env:     map[string]string{"PYTHONHASHSEED": "0"},
		Args: append([]string{"--supported-transfer-mode", "auto", "--no-l1-use-lazy", "--shm-name", "lmcache"},
			append(l1, "--l2-adapter", compact(config))...),
		Config: config,
		Files: map[string]string{
			"lmcache.yaml": "chunk_size: 256\n" +
				"remote_url: unix://" + o.socket + "\nremote_serde: naive\npre_caching_hash_algorithm: sha256_cbor\nsave_unfull_chunk: false\n",
		},
		Notes: []string{
			installNote,
			"every engine that is to share blocks needs the same PYTHONHASHSEED and pre_caching_hash_algorithm",
			"an engine with LMCache inside needs no Python package: give it lmcache.yaml by LMCACHE_CONFIG_FILE",
			"resp:// in remote_url is not safe: LMCache 0.5.6 takes any failed get for a hit there, on any server; use unix:// or the server above",
		},
	}
	if host, text, err := net.SplitHostPort(o.listen); err == nil {
		port, _ := strconv.Atoi(text) // the configuration has checked it
		resp := map[string]any{"type": "resp", "host": host, "port": port}
		e.Other = []string{"lmcache server " + strings.Join(l1, " ") + " --l2-adapter " + cli.ShellQuote(compact(resp))}
	}
	return e
}
