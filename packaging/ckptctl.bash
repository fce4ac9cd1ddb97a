# bash completion for ckptctl; made by 'ckptctl --completion' from its table of verbs
_ckptctl()
{
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
	local verb= opts= want= i
	local -a from=() args=()
	COMPREPLY=()
	case $prev in
	--socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--data) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	--jobs) return ;;
	--tensor) return ;;
	--keep-last) return ;;
	--keep-every) return ;;
	--format) COMPREPLY=($(compgen -W 'safetensors dcp torch' -- "$cur")); return ;;
	--output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--as) return ;;
	--step) return ;;
	--to) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--cast) COMPREPLY=($(compgen -W 'bf16 f16 f32 f64' -- "$cur")); return ;;
	--min-trust) COMPREPLY=($(compgen -W 'latest complete verified' -- "$cur")); return ;;
	--set) COMPREPLY=($(compgen -W 'verified bad' -- "$cur")); return ;;
	--shard-size) return ;;
	--metadata) return ;;
	--memory) return ;;
	--torch) COMPREPLY=($(compgen -W '1.13 2' -- "$cur")); return ;;
	--to-data) COMPREPLY=($(compgen -d -- "$cur")); return ;;
	--table) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--compress) return ;;
	--since) return ;;
	--peers) return ;;
	--self) return ;;
	--fleet) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--history) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	--time) return ;;
	esac
	for ((i = 1; i < COMP_CWORD; i++)); do
		case ${COMP_WORDS[i]} in
		--socket|--data) from+=("${COMP_WORDS[i]}" "${COMP_WORDS[i+1]}"); ((i++)) ;;
		--jobs) ((i++)) ;;
		--tensor) ((i++)) ;;
		--keep-last) ((i++)) ;;
		--keep-every) ((i++)) ;;
		--as) ((i++)) ;;
		--step) ((i++)) ;;
		--shard-size) ((i++)) ;;
		--metadata) ((i++)) ;;
		--memory) ((i++)) ;;
		--compress) ((i++)) ;;
		--since) ((i++)) ;;
		--peers) ((i++)) ;;
		--self) ((i++)) ;;
		--time) ((i++)) ;;
		-*) ;;
		*)
			if [ -z "$verb" ]; then
				verb=${COMP_WORDS[i]}
			else
				args+=("${COMP_WORDS[i]}")
			fi ;;
		esac
	done
	case $verb in
	'') want=verb opts="status list show verify rm rm-job pin unpin trust gc diff export layout import reshard events node-check xid why clear drain undrain policy goodput safe token rebuild --help --version" ;;
	status) want=job opts=" --socket --data --json --quiet --verbose --help" ;;
	list) want=job opts=" --socket --data --json --quiet --verbose --help" ;;
	show) want=job-step opts=" --socket --data --json --tensor --min-trust --quiet --verbose --help" ;;
	verify) want=job-step opts=" --socket --data --json --jobs --min-trust --quiet --verbose --help" ;;
	rm) want=job-steps opts=" --socket --data --json --yes --all --quiet --verbose --help" ;;
	rm-job) want=job opts=" --socket --data --json --yes --quiet --verbose --help" ;;
	pin) want=job-steps opts=" --socket --json --quiet --verbose --help" ;;
	unpin) want=job-steps opts=" --socket --json --quiet --verbose --help" ;;
	trust) want=job-step opts=" --socket --data --json --set --quiet --verbose --help" ;;
	gc) want=job opts=" --socket --data --json --dry-run --keep-last --keep-every --incoming --quiet --verbose --help" ;;
	diff) want=sides opts=" --socket --data --json --tensor --min-trust --memory --quiet --verbose --help" ;;
	export) want=job-step opts=" --socket --data --json --yes --tensor --format --output --cast --min-trust --shard-size --metadata --memory --torch --quiet --verbose --help" ;;
	layout) want=layout opts=" --socket --data --json --tensor --quiet --verbose --help" ;;
	import) want=file opts=" --socket --data --json --dry-run --tensor --format --as --step --to --memory --quiet --verbose --help" ;;
	reshard) want=job-step opts=" --socket --data --json --dry-run --as --to --min-trust --memory --to-data --compress --quiet --verbose --help" ;;
	events) want=none opts=" --socket --data --json --follow --since --quiet --verbose --help" ;;
	node-check) want=none opts=" --socket --data --json --memory --peers --self --fleet --history --time --quiet --verbose --help" ;;
	xid) want=none opts=" --json --table --quiet --verbose --help" ;;
	why) want=job opts=" --socket --data --json --quiet --verbose --help" ;;
	clear) want=job opts=" --socket --json --quiet --verbose --help" ;;
	drain) want=job opts=" --socket --json --quiet --verbose --help" ;;
	undrain) want=job opts=" --socket --json --quiet --verbose --help" ;;
	policy) want=policy opts=" --socket --json --dry-run --quiet --verbose --help" ;;
	goodput) want=job opts=" --socket --data --json --quiet --verbose --help" ;;
	safe) want=job opts=" --socket --json --quiet --verbose --help" ;;
	token) want=job opts=" --socket --json --quiet --verbose --help" ;;
	rebuild) want=none opts=" --socket --data --json --quiet --verbose --help" ;;
	esac
	case $cur in
	-*) COMPREPLY=($(compgen -W "$opts" -- "$cur")); return ;;
	esac
	case $want:${#args[@]} in
	verb:*) ;;
	file:0|layout:0) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	policy:0) opts="dead hung slow corrupting diverging unstable failing" ;;
	policy:1) opts="process-ended node-silent stalled stopped straggler odd-one-out path-slow link-down link-flaps link-errors xid kernel not-a-number jump drift replicas-differ stale disk-errors degraded memory-errors pressure check-failed" ;;
	job*:0|layout:1|policy:2|sides:*) opts=$("$1" -q status "${from[@]}" 2>/dev/null) ;;
	job-step:1|job-steps:*)
		opts=$("$1" -q list "${args[0]}" "${from[@]}" 2>/dev/null) ;;
	layout:2) opts=$("$1" -q list "${args[1]}" "${from[@]}" 2>/dev/null) ;;
	*) return ;;
	esac
	COMPREPLY=($(compgen -W "$opts" -- "$cur"))
}
complete -F _ckptctl ckptctl
