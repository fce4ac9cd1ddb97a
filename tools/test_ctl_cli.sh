#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command line of ckptctl: help, usage errors, completion, and that the manual has it all.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"
requires bash -c true
man=$src/man/ckptctl.1.pod
make_data

run 0 --help
cp "$dir/out" "$dir/help"
verbs=$(sed -n 's/^  \([a-z][a-z-]*\) .*/\1/p' "$dir/help")
[ "$(echo $verbs)" = "status list show verify rm rm-job pin unpin trust gc diff export layout import reshard events node-check xid why clear drain undrain policy goodput safe token rebuild" ] || fail "verbs: $verbs"
for verb in $verbs; do
	run 0 "$verb" --help
	says out "usage: ckptctl $verb"
	grep -q "^=head2 .*\b$verb\b" "$man" || fail "verb $verb is not in the manual"
done
for option in $(grep -o -- '--[a-z-]*' "$dir/help" | sort -u); do
	grep -q "^=item.*B<$option>" "$man" || fail "option $option is not in the manual"
done
run 0 --version
says out "ckptctl "

# ---- Usage errors are 2 and one sentence

for line in "" "frob" "list a b" "show" "show alpha 1 2" "rm alpha" "list --yes" "rm a 1 --data $data" \
	"verify --jobs 0" "verify --jobs x" "verify --jobs" "verify --socket /x" "list --nothing" "status -z" \
	"gc --keep-last -1 --dry-run" "verify a b c" "verify alpha x --data $data"; do
	run 2 $line
	silent out
	[ "$(grep -c '^ckptctl: ' "$dir/err")" = 1 ] || [ -z "$line" ] || fail "not one sentence: $(cat "$dir/err")"
done
run 2 list --yes
says err "'list' has no option --yes"
run 2 frob
says err "there is no verb 'frob'; 'ckptctl --help' lists them"
run 2 staus
says err "there is no verb 'staus' (did you mean 'status'?); 'ckptctl --help' lists them"
run 0 help
says out "usage: ckptctl VERB"
run 0 help pin
says out "usage: ckptctl pin JOB STEP"
run 2 help pn
says err "there is no verb 'pn' (did you mean 'pin'?)"
run 2 list --jsn
says err "there is no option --jsn (did you mean '--json'?)"
run 2 list alhpa --data "$data"
says err "there is no job 'alhpa' in this folder (did you mean 'alpha'?)"
run 2 show alpa --data "$data"
says err "there is no job 'alpa' in this folder (did you mean 'alpha'?)"
run 2 diff alpa beta --data "$data"
says err "there is no job 'alpa' in '$data' (did you mean 'alpha'?)"
run 0 --data "$data" list alpha # options may come first
if [ -c /dev/full ]; then
	ctl list --data "$data" >/dev/full 2>"$dir/err"
	[ $? = 2 ] || fail "output to a full disk"
	says err "could not write the output"
fi

run 2 import
says err "usage: ckptctl import PATH --as JOB"
run 0 reshard --help
says out "usage: ckptctl reshard JOB [STEP[.ATTEMPT]] --to LAYOUT --as JOB [OPTIONS]"
run 0 --help
awk '/^  / { at = /^  [a-z]/ ? 41 : 28; if (substr($0, at - 1, 1) != " " || substr($0, at, 1) == " ") exit 1 }' \
	"$dir/out" || fail "the help is not aligned"

# ---- Completion

run 0 --completion
cmp "$dir/out" "$src/packaging/ckptctl.bash" ||
	fail "packaging/ckptctl.bash is old: make it with 'ckptctl --completion'"
cat >"$dir/complete.bash" <<'EOT'
source "$1"; shift
COMP_WORDS=("$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ckptctl "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
EOT
# completes WANT WORDS...: so many of the words that come have WANT among them, "" for none.
completes () {
	want=$1
	shift
	checks=$((checks + 1))
	bash "$dir/complete.bash" "$src/packaging/ckptctl.bash" "$build/ckptctl" "$@" >"$dir/words"
	if [ -n "$want" ]; then
		grep -qFx -- "$want" "$dir/words" || { fail "completion of '$*' has no '$want'"; cat "$dir/words"; }
	else
		[ -z "$(cat "$dir/words")" ] || { fail "completion of '$*'"; cat "$dir/words"; }
	fi
}
for verb in $verbs; do completes "$verb" ""; done
completes status sta
completes --help -
completes alpha layout fsdp2=2 --data "$data" ""
completes alpha diff alpha --data "$data" "a"
completes "$src/tools/verbs.c" import "$src/tools/verbs"
completes --dry-run gc --d
completes --tensor show --
completes "" list --ye
completes alpha list --data "$data" ""
completes beta show --data "$data" b
completes "" rebuild --data "$data" ""
name=$(ctl -q list alpha --data "$data" | head -n 1)
completes "$name" show --data "$data" alpha 40
completes dead policy ""
completes process-ended policy dead p
completes alpha policy dead process-ended --data "$data" ""
completes "" policy dead process-ended alpha ""
completes "$name" verify --jobs 3 --data "$data" alpha ""
completes "" show --data "$data" alpha 30 ""
completes "$data" --data "$dir/da"

# ckptd's own options
if [ -x "$build/ckptd/ckptd" ]; then
	"$build/ckptd/ckptd" --sokcet x >"$dir/out" 2>"$dir/err"
	[ $? = 2 ] || fail "ckptd --sokcet: not refused"
	says err "ckptd: --sokcet (did you mean '--socket'?)"
fi
ending 83
