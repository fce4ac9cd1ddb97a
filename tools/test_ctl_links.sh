#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Symbolic links in a data folder are not followed: by no verb, in no place, whatever the right of
# the one who runs it. As root it is another user's folder, and the victim root's own: that root
# works as the owner is seen in the owner of what it makes.
. "${top_srcdir:-.}/tools/test_ctl_functions.sh"

chmod 755 "$dir"
user=$(id -u)
[ "$user" != 0 ] || user=65534
victim=$dir/victim

# The victims look like what they stand for, so that only the link can be the reason.
make_victim () {
	rm -rf "$victim"
	mkdir "$victim"
	for n in 000001.log CURRENT keep rank-0.shard; do echo precious >"$victim/$n"; done
	echo precious >"$dir/victim-file"
	victim_before=$(victim_state)
}
victim_state () {
	find "$victim" "$dir/victim-file" -printf '%P %y %m %U %s %T@ %n\n' | LC_ALL=C sort
	find "$victim" "$dir/victim-file" -type f -exec cat {} +
}

give () { [ "$user" = "$(id -u)" ] || chown -hR "$user" "$data"; }

make_fresh () {
	rm -rf "$data"
	make_data
	mkdir -p "$data/incoming" "$data/checks"
	give
}

# linked PATH TARGET: PATH of the data folder becomes a link.
linked () {
	rm -rf "${data:?}/$1"
	ln -s "$2" "$data/$1"
	give
}

# Verbs that look at files, or change them; the status does not matter here.
each_verb () {
	for words in "rebuild" "verify" "list" "show alpha 30" "gc --incoming" \
		"import $dir/in.safetensors --as new" "reshard alpha 30 --to tp=1 --as other" \
		"export alpha 30 --output $dir/out.safetensors --yes" "rm beta --all --yes"; do
		ctl $words --data "$data" >"$dir/out" 2>"$dir/err" </dev/null
		[ $? -lt 126 ] || fail "$words: it died"
		cat "$dir/out" "$dir/err" >>"$dir/said"
	done
}

unharmed () {
	checks=$((checks + 1))
	[ "$(victim_state)" = "$victim_before" ] || {
		fail "$1: the link's target is not as it was"
		victim_state | sed 's/^/  | /'
		make_victim
	}
}

# ---- A file to import; and what may be made in the folder belongs to its owner

make_fresh
run 0 export beta 5 --data "$data" --output "$dir/in.safetensors" --tensor adam.m --tensor big
run 0 import "$dir/in.safetensors" --as gamma --data "$data"
run 0 rebuild --data "$data"
run 0 rm beta --all --yes --data "$data"
run 0 gc --incoming --data "$data"
ctl node-check --memory 1M --data "$data" -q >"$dir/out" 2>"$dir/err"
[ -s "$data/checks/history" ] || fail "no history"
checks=$((checks + 1))
others=$(find "$data" ! -user "$user")
[ -z "$others" ] || fail "of another user than the folder's: $others"

# A folder that is not there yet belongs to the owner of the one that it is made in.
mkdir "$dir/home"
[ "$user" = "$(id -u)" ] || chown "$user" "$dir/home"
run 0 import "$dir/in.safetensors" --as gamma --data "$dir/home/new"
others=$(find "$dir/home" ! -user "$user")
[ -z "$others" ] || fail "a new folder: of another user: $others"
run 2 import "$dir/in.safetensors" --as gamma --data "$dir" # it has other files
says err "has other files and no FORMAT"

# ---- What an earlier root has left in the folder

if [ "$user" != "$(id -u)" ]; then
	make_fresh
	chown 0 "$data/FORMAT"
	run 2 list --data "$data"
	says err "'chown -R $user $data'"
	make_fresh
	run 0 rebuild --data "$data"
	chown -R 0 "$data/index"
	run 0 rebuild --data "$data"
	says err "was set aside"
fi

# ---- Files of an import: root does not read for a user what that user may not

if [ "$user" != "$(id -u)" ]; then
	make_fresh
	secret=$dir/secret given=$dir/given
	mkdir -m 700 "$secret"
	mkdir "$given" "$given/many" "$given/torch"
	ctl export beta 5 --data "$data" --format dcp --tensor '!step*' --output "$given/dcp" -q || exit 99
	ctl export beta 5 --data "$data" --format dcp --tensor '!step*' --output "$secret/dcp" -q || exit 99
	cp "$dir/in.safetensors" "$secret/in.safetensors"
	/usr/bin/python3 - "$secret/in.safetensors" "$given/many" <<-'PY' || exit 99
		import json, sys
		f = open(sys.argv[1], "rb")
		names = json.loads(f.read(int.from_bytes(f.read(8), "little")))
		json.dump({"weight_map": {n: "1.safetensors" for n in names if n != "__metadata__"}},
		          open(sys.argv[2] + "/model.safetensors.index.json", "w"))
	PY
	for n in "$given/one.safetensors" "$given/many/1.safetensors" "$given/torch/all.pt"; do
		ln -s "$secret/in.safetensors" "$n"
	done
	ln -s "$secret" "$given/folder"
	for n in "$given"/dcp/*.distcp; do
		ln -sf "$secret/dcp/$(basename "$n")" "$n"
	done
	chown -hR "$user" "$given"
	for n in one.safetensors folder/in.safetensors many dcp; do
		run 2 import "$given/$n" --as leak --data "$data"
		says err "Permission denied"
		run 2 diff "$given/$n" "$given/$n"
	done
	run 2 import "$given/torch/all.pt" --format torch --as leak --data "$data"
	says err "with the rights of user $user, who can exchange it"
	(cd "$given" && "$(cd "$OLDPWD" && realpath "$build/ckptctl")" import ./one.safetensors --as leak --data "$data") \
		>"$dir/out" 2>"$dir/err"
	says err "Permission denied"
	run 0 list --data "$data"
	lacks out leak
	# Root's own links and files lead where root says; what the user may read is theirs.
	ln -s "$secret/in.safetensors" "$dir/link.safetensors"
	run 0 import "$dir/link.safetensors" --as of-root --data "$data"
	cp "$dir/in.safetensors" "$given/own.safetensors"
	chown "$user" "$given/own.safetensors"
	run 0 import "$given/own.safetensors" --as of-user --data "$data"
	run 2 import "$dir/link.safetensors/x" --as none --data "$data"
	# Nor does it wait for somebody to write into what is no file.
	mkfifo "$given/fifo.pt"
	checks=$((checks + 1))
	timeout 20 "$build/ckptctl" import "$given/fifo.pt" --format torch --as leak --data "$data" \
		2>"$dir/err"
	[ $? = 2 ] || fail "import of a FIFO"
	says err "is no regular file"
fi

# ---- Tools look at LOCK beneath the folder too: a step whose COMMIT is missing makes them look

make_data
ln -sf "$dir/victim-lock" "$data/LOCK"
rm "$alpha"/30.*/COMMIT
strace -f -qq -o "$dir/trace" -e trace=open,openat "$build/ckptctl" list --data "$data" >"$dir/out" 2>"$dir/err"
says out "alpha"
checks=$((checks + 1))
! grep -F '/LOCK"' "$dir/trace" || fail "LOCK is opened by its path"

# ---- A link in every place

make_victim
id_a=a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1
make_fresh
step=$(cd "$data/jobs/$id_a" && echo 30.*)
declaration=$(cd "$data/declarations" && set -- * && echo "$1")
layout=$(cd "$data/layouts" && set -- * && echo "$1")
while read -r place target name; do
	make_fresh
	: >"$dir/said"
	linked "$place" "$target"
	each_verb
	unharmed "$place"
	[ "$name" = - ] || {
		checks=$((checks + 1))
		grep -F "$name" "$dir/said" | grep -qF "symbolic link" ||
			fail "$place: no sentence has '$name' and 'symbolic link'"
	}
done <<ROWS
LOCK $dir/victim-file LOCK
FORMAT $dir/victim-file FORMAT
jobs $victim jobs
jobs/$id_a $victim jobs/$id_a
jobs/$id_a/log $victim jobs/$id_a/log
jobs/$id_a/log/00000000000000000000 $dir/victim-file $id_a
jobs/$id_a/$step $victim jobs/$id_a/$step
jobs/$id_a/$step/COMMIT $dir/victim-file COMMIT
jobs/$id_a/$step/rank-0.shard $victim/rank-0.shard rank-0.shard
declarations $victim declarations
declarations/$declaration $dir/victim-file declarations/$declaration
layouts $victim layouts
layouts/$layout $dir/victim-file layouts/$layout
spare $victim spare
incoming $victim incoming
incoming/LOCK $dir/victim-file incoming/LOCK
incoming/cccccccccccccccccccccccccccccccc $victim -
incoming/cccccccccccccccccccccccccccccccc.gone $victim -
incoming/cccccccccccccccccccccccccccccccc.making $dir/victim-file -
checks $victim -
checks/history $dir/victim-file -
index $victim index
ROWS

# What RocksDB opens: the index itself, what is in it, and where it was set aside before.
linked_index () {
	make_fresh
	run 0 rebuild --data "$data"
	linked "$1" "$2"
	run 0 rebuild --data "$data"
	says out "checkpoints: 5"
	unharmed "$1"
}
linked_index index "$victim"
says err "index '$data/index' was set aside as '$data/index.bad': it is a symbolic link"
linked_index index/CURRENT "$victim/CURRENT"
says err "'CURRENT' in it is a symbolic link"
linked_index index/LOG "$victim/keep"
says err "'LOG' in it is a symbolic link"
for n in 1 2 3 4 5 6 7 8 9; do
	linked "index/00000$n.log" "$victim/00000$n.log"
done
run 0 rebuild --data "$data"
unharmed "the next logs"
linked_index index.bad "$victim"
echo nonsense >"$data/index/CURRENT"
run 0 rebuild --data "$data"
says err "was set aside"
unharmed "index.bad"
[ -d "$data/index.bad" ] && [ ! -L "$data/index.bad" ] || fail "index.bad is still the link"

# The history of node checks
for place in checks checks/history; do
	make_fresh
	linked "$place" "$([ "$place" = checks ] && echo "$victim" || echo "$dir/victim-file")"
	ctl node-check --memory 1M --data "$data" -q >"$dir/out" 2>"$dir/err" # fit or not
	says err "symbolic link"
	unharmed "$place"
done

# ---- ckptd itself, as the owner of folder and victim

: >"$dir/conf"
user=$(id -u)
start () {
	"$build/ckptd/ckptd" --config "$dir/conf" --socket "$dir/sock" --data "$data" \
		>"$dir/log" 2>&1 &
	pid=$!
	for i in $(seq 600); do
		! grep -q ' ready: ' "$dir/log" || break
		kill -0 $pid 2>/dev/null || break
		sleep 0.05
	done
	kill $pid 2>/dev/null
	wait $pid
	cp "$dir/log" "$dir/err"
}
[ ! -x "$build/ckptd/ckptd" ] || while read -r place target name; do
	make_fresh
	linked "$place" "$target"
	start
	unharmed "ckptd: $place"
	checks=$((checks + 1))
	[ "$name" = - ] || { grep -F "$name" "$dir/log" | grep -qF "symbolic link" ||
		{ fail "ckptd: $place is not told of"; sed 's/^/  | /' "$dir/log"; }; }
done <<ROWS
LOCK $dir/victim-file LOCK
FORMAT $dir/victim-file FORMAT
jobs $victim jobs
jobs/$id_a $victim jobs/$id_a
declarations $victim declarations
spare $victim spare
index $victim index
index.bad $victim -
events $dir/victim-file -
events.old $dir/victim-file -
marks $dir/victim-file -
kernel-messages.seen $dir/victim-file -
kernel-messages.seen.tmp $dir/victim-file -
ROWS
ending 100
