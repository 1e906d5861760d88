# Ends what an agent has started in a container: it carries the mark, or nobody's and has lost its parents. Told by lines on
# stdin what to do; when that ends, because the bridge is gone, however it went, everything of the mark is ended.
mark=$1
program=0

# "PID:START" of every process but this one and its own.
processes() {
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    about "$pid" || continue
    [ "$pid" = "$$" ] || [ "$parent" = "$$" ] || printf '%s:%s ' "$pid" "$start"
  done
}

# Its parent and when it started; fails for one that is gone or a zombie.
about() {
  { IFS= read -r line < "/proc/$1/stat"; } 2> /dev/null || return 1
  set -f
  set -- ${line##*) }
  set +f
  state=$1 parent=$2 start=${20}
  [ "$state" != Z ] && [ "$state" != X ]
}

mark_of() {
  { tr '\0' '\n' < "/proc/$1/environ" | sed -n 's/^HOSTLER_RUN=//p'; } 2> /dev/null
}

# 0 for one that is to be ended, 1 for one that is not, 2 where that cannot be told: it, or a parent, has just ended.
is_ours() {
  next=$1
  while about "$next"; do
    found=$(mark_of "$next")
    [ -z "$found" ] || { [ "$found" = "$mark" ]; return; }
    [ "$parent" != 0 ] || return 1 # what somebody else has started in here
    [ "$parent" != 1 ] || return 0 # its parents have ended
    next=$parent
  done
  return 2
}

# All but those in $1.
sweep() {
  spared=" $1 " quiet=0 round=0
  while [ "$quiet" -lt 2 ] && [ "$round" -lt 60 ]; do
    round=$((round + 1)) killed=
    for process in $(processes); do
      case "$spared" in *" $process "*) continue ;; esac
      quiet=-1
      is_ours "${process%%:*}"
      case $? in
        0) if kill -STOP "${process%%:*}" 2> /dev/null; then killed="$killed ${process%%:*}"; fi ;;
        1) spared="$spared$process " ;;
      esac
    done
    [ -z "$killed" ] || kill -KILL $killed 2> /dev/null
    quiet=$((quiet + 1))
  done
}

before=${2:-$(processes)}
spare=$before
echo "ready $before"
while read -r word number; do
  case $word in
    program) program=$number && about "$number" && itself="$number:$start" ;;
    turn) spare=$(processes) ;;
    sweep) sweep "$spare $itself" && echo "swept $number" ;;
    term) kill -TERM "$program" 2> /dev/null ;;
    end) sweep "$before" && echo "ended $number" ;;
  esac
done
sweep "$before"
